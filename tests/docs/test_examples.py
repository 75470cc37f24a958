from pathlib import Path

import pytest

from tests.docs.page import BLOCK, run_page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# Pages that train start processes, each of which loads a framework.
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
@pytest.mark.usefixtures("printed_ports")
def test_the_examples_of_a_page_run_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_page(page.read_text(encoding="utf-8"), tmp_path)

from pathlib import Path

import pytest

from tests.docs.page import BLOCK, run_page

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(page.relative_to(ROOT)): page for page in FILES}
# Pages that train for minutes.
SLOW = {"docs/quickstart.md", "docs/peer/index.md"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, page in PAGES.items()
        if BLOCK.search(page.read_text(encoding="utf-8"))
    ],
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

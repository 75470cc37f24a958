"""Tables and files on the pages are those of the code."""

import re
from pathlib import Path

from melisma.allocation import SCHEMES
from melisma.fleet import read_fleet, read_task

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_schemes_is_that_of_the_code() -> None:
    page = (DOCS / "allocation" / "index.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[([\w-]+)\]\((\w+\.md)\) \| (.*) \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE
    )
    assert [(name, *rest) for name, _, *rest in rows] == [
        (row.name, row.summary, row.before, row.during, row.paper) for row in SCHEMES.values()
    ]
    assert all((DOCS / "allocation" / file).exists() for _, file, *_ in rows)


def test_the_files_on_the_fleet_page_can_be_read(tmp_path: Path) -> None:
    page = (DOCS / "fleet" / "index.md").read_text(encoding="utf-8")
    task, fleet = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "TASK.toml").write_text(task, encoding="utf-8")
    (tmp_path / "FLEET.toml").write_text(fleet, encoding="utf-8")
    assert read_task(tmp_path / "TASK.toml").passes == 5
    assert read_fleet(tmp_path / "FLEET.toml").learners == 501

"""Tables and files on the pages are those of the code."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import get_args, get_type_hints

from melisma.allocation import SCHEMES, RadioProblem, Scheme
from melisma.cli import plan
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


def test_a_row_is_explained_field_by_field_and_value_by_value() -> None:
    page = (DOCS / "allocation" / "index.md").read_text(encoding="utf-8")
    _, table = page.split("| field of a row | value | |\n")
    cells = re.findall(r"^\| (?:`(\w+)`)? ?\| (.*?) \|", table.split("\n\n")[0], re.MULTILINE)
    documented: dict[str, list[str]] = {}
    for field, values in cells:
        documented.setdefault(field or list(documented)[-1], []).extend(
            re.findall(r'`"?(\w+)"?`', values)
        )
    obvious = {"name", "decide", "summary", "paper"}
    assert set(documented) == {field.name for field in fields(Scheme)} - obvious
    for name in ("problem", "needs", "passes"):
        assert tuple(documented[name]) == get_args(get_type_hints(Scheme)[name])


def test_fields_of_a_radio_problem_have_the_defaults_of_the_code() -> None:
    page = (DOCS / "allocation" / "feel.md").read_text(encoding="utf-8")
    _, table = page.split("| field | default | |\n")
    rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", table.split("\n\n")[0], re.MULTILINE)
    parameters = signature(RadioProblem).parameters.values()
    assert rows == [
        (p.name, "required" if p.default is p.empty else str(p.default)) for p in parameters
    ]


def test_the_defaults_of_the_options_are_those_of_the_command() -> None:
    page = (DOCS / "allocation" / "plan.md").read_text(encoding="utf-8")
    documented = dict(
        re.findall(r"^\| `(--[\w-]+) \w+` \| .*?(\d+) by default", page, re.MULTILINE)
    )
    options = {option.opts[0]: option.default for option in plan.command.params}
    assert documented == {name: f"{options[name]:g}" for name in ("--show", "--time-limit")}


def test_the_files_on_the_fleet_page_can_be_read(tmp_path: Path) -> None:
    page = (DOCS / "fleet" / "index.md").read_text(encoding="utf-8")
    task, fleet, *_ = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "TASK.toml").write_text(task, encoding="utf-8")
    (tmp_path / "FLEET.toml").write_text(fleet, encoding="utf-8")
    assert read_task(tmp_path / "TASK.toml").passes == 5
    assert read_fleet(tmp_path / "FLEET.toml").learners == 501


def test_the_files_on_the_quickstart_can_be_read(tmp_path: Path) -> None:
    page = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    printed = re.findall(r"^```toml\n# ([\w.]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name, text in printed:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [name for name, _ in printed] == ["task.toml", "fleet.toml", "own.toml"]
    assert read_task(tmp_path / "task.toml").scheme == "dab"
    assert read_task(tmp_path / "own.toml").model == "spirals:Net"
    assert read_fleet(tmp_path / "fleet.toml").names == ("pi", "jetson")

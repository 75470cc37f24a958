"""Tables of the pages on running and on the cycle are those of the code."""

import re
from pathlib import Path

import msgspec
import pytest

from melisma.allocation import SCHEMES
from melisma.cli import run
from melisma.cli.output import EXIT_CODES, FAILURE_CODE
from melisma.cycle import commands, events
from melisma.cycle.state import Stage
from melisma.live.orchestrator.learner_service import METHODS

DOCS = Path(__file__).parents[2] / "docs"
CYCLE = (DOCS / "cycle" / "index.md").read_text(encoding="utf-8")
LIVE = (DOCS / "live" / "index.md").read_text(encoding="utf-8")


def rows(page: str, head: str) -> list[list[str]]:
    """Cells of the table with that first line."""
    _, table = page.split(f"{head}\n")
    lines = table.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("head", "kind"),
    [("| event | fields | |", events.Event), ("| command | fields | |", commands.Command)],
    ids=["events", "commands"],
)
def test_events_and_commands_are_listed_with_their_fields(
    head: str, kind: type[msgspec.Struct]
) -> None:
    shared = {field.name for field in msgspec.structs.fields(kind)}
    expected = {
        each.__name__: [f.name for f in msgspec.structs.fields(each) if f.name not in shared]
        for each in kind.__subclasses__()
    }
    documented = {
        name.strip("`"): re.findall(r"`(\w+)`", fields) for name, fields, _ in rows(CYCLE, head)
    }
    assert documented == expected
    assert list(documented) == list(expected)


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_is_in_the_drawing(stage: Stage) -> None:
    drawing = CYCLE.split("## Stages\n\n```text\n")[1].split("```")[0]
    assert re.search(rf"\b{stage}\b", drawing)


def test_disclosures_equal_those_of_the_table_of_schemes() -> None:
    documented = [
        tuple(row) for row in rows(LIVE, "| scheme | before its update | while it trains |")
    ]
    assert documented == [
        (f"`{row.name}`", row.before, row.during)
        for row in SCHEMES.values()
        if row.problem == "cycle"
    ]


def test_calls_of_a_learner_equal_those_that_the_orchestrator_serves() -> None:
    documented = [row[0].strip("`") for row in rows(LIVE, "| a learner calls | with | and gets |")]
    assert sorted(documented) == sorted(METHODS)


def test_options_equal_those_of_the_command() -> None:
    documented = [row[0].strip("`") for row in rows(LIVE, "| option | |")]
    options = [p.opts[0] for p in run.command.params if p.param_type_name == "option"]
    assert documented == options


def test_exit_codes_equal_those_of_the_command() -> None:
    documented = {int(row[0]) for row in rows(LIVE, "| exit code | |")}
    assert documented == {2, FAILURE_CODE, *EXIT_CODES.values()}

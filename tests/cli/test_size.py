"""`melisma size` as users call it."""

from pathlib import Path

import pytest

from tests.cli.command_line import melisma, parse_json

GOAL = ("--visits", "5e6", "--within", "60")
JETSONS = ("size", "--find", "devices", "--kind", "jetson", *GOAL)


def test_the_candidates_and_the_answer_are_printed(tmp_path: Path) -> None:
    picture = tmp_path / "trade-off.svg"
    done = melisma(*JETSONS, "--picture", picture)
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["devices", "samples", "goal"]
    assert lines[3].split()[0::2] == ["2", "missed"]
    assert lines[4].split()[0::2] == ["3", "reached"]
    assert "5,000,000 samples trained within 60 s: 3 jetson" in lines
    assert "tried 3: " in done.stderr
    assert picture.read_text().startswith("<svg")


def test_json_has_the_answer_and_nothing_else_is_printed() -> None:
    done = melisma(*JETSONS, "--json")
    result = parse_json(done.stdout)
    assert (result["answer"], result["unit"], done.stderr) == (3.0, "jetson", "")
    assert [row["holds"] for row in result["candidates"]] == [False, False, False, True, True]


def test_a_goal_out_of_reach_exits_with_1() -> None:
    done = melisma(*JETSONS[:-4], "--visits", "1e12", "--within", "60", "--most", "2")
    assert done.code == 1
    assert "no candidate reaches it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--find", "devices", *GOAL), "kind is missing; the fleet has pi-kitchen, pi-shed"),
        (("--find", "deadlin", *GOAL), "did you mean deadline?"),
        (("--find", "deadline", "--within", "60"), "the goal is visits or accuracy"),
        (("--find", "deadline", *GOAL, "--picture", "a.png"), "ends with .svg"),
    ],
)
def test_wrong_options_are_errors_of_usage(arguments: tuple[str, ...], problem: str) -> None:
    refused = melisma("size", *arguments)
    assert refused.code == 2
    assert problem in refused.stderr

"""The table of `melisma size` with candidates that fail."""

from collections.abc import Sequence
from io import StringIO
from math import nan

from rich.console import Console

from melisma.cli.views.size_view import size_view
from melisma.simulation.sizing.size_goal import SizeGoal
from melisma.simulation.sizing.sizing import Candidate, Sizing


def lines_of(problems: Sequence[str]) -> list[str]:
    """Return the printed lines of a sizing whose candidates have these problems."""
    tried = [Candidate(n, False, nan, nan, problem) for n, problem in enumerate(problems, 1)]
    sizing = Sizing(
        find="budget",
        goal=SizeGoal(60.0, visits=1e6),
        unit="cheapest devices",
        answer=None,
        chosen=None,
        candidates=tuple(tried),
        monotone=True,
        seeds=(1,),
        level="timing",
    )
    stream = StringIO()
    Console(file=stream, width=250).print(size_view(sizing, has_prices=False))
    return stream.getvalue().splitlines()


def test_a_problem_of_several_candidates_is_printed_once() -> None:
    absent = "no learner is present at the start"
    lines = lines_of([absent, absent, "", absent])
    assert lines[0].split() == ["cheapest", "samples", "goal"]
    assert [line.strip() for line in lines if absent in line] == [f"cheapest 1, 2, 4: {absent}"]


def test_of_many_problems_the_first_ones_are_printed() -> None:
    lines = lines_of([f"{n} devices are too few" for n in range(1, 10)])
    assert [line.split(":")[0] for line in lines if "too few" in line] == [
        "cheapest 1",
        "cheapest 2",
        "cheapest 3",
    ]
    assert "6 more problems; --json has all" in [line.strip() for line in lines]

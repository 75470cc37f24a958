"""The table of `melisma size`: the candidates that were tried, and the answer."""

from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.table_view import FigureTable
from melisma.simulation.sizing.sizing import Candidate, Sizing
from melisma.simulation.sizing.sizing_picture import answer_line
from melisma.text import visible_part

MAX_PROBLEMS = 3
TITLES = {
    "deadline": "deadline s",
    "devices": "devices",
    "budget": "cheapest",
    "model": "factor",
}


def size_view(sizing: Sizing, *, has_prices: bool) -> RenderableType:
    """Return the candidates, the answer, and what to know about it."""
    reached = "samples" if sizing.goal.visits is not None else "seconds"
    titles = (TITLES[sizing.find], reached, *(("cost",) if has_prices else ()), "goal")
    rows = [_row(candidate, has_prices=has_prices) for candidate in sizing.candidates]
    return Group(
        FigureTable(titles, rows),
        *map(Text, _problems(sizing)),
        Text(answer_line(sizing), style="bold"),
        *map(Text, _notes(sizing)),
    )


def candidate_line(candidate: Candidate) -> str:
    """Return one candidate in a line."""
    return f"{candidate.value:g}: {_format(candidate.reached)}, {_verdict(candidate)}"


def _row(candidate: Candidate, *, has_prices: bool) -> tuple[str, ...]:
    cost = (_format(candidate.cost),) if has_prices else ()
    return (f"{candidate.value:g}", _format(candidate.reached), *cost, _verdict(candidate))


def _problems(sizing: Sizing) -> list[str]:
    """Return each problem once, with its candidates; of many the first ones."""
    found = dict[str, list[str]]()
    for candidate in sizing.candidates:
        if candidate.problem:
            found.setdefault(visible_part(candidate.problem), []).append(f"{candidate.value:g}")
    title, rest = TITLES[sizing.find], len(found) - MAX_PROBLEMS
    lines = [f"{title} {', '.join(values)}: {problem}" for problem, values in found.items()]
    return lines[:MAX_PROBLEMS] + [f"{rest} more problems; --json has all"] * (rest > 0)


def _verdict(candidate: Candidate) -> str:
    return "reached" if candidate.holds else "missed"


def _format(figure: float) -> str:
    return "-" if isnan(figure) else f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"


def _notes(sizing: Sizing) -> list[str]:
    seeds = f"seeds {sizing.seeds[0]} to {sizing.seeds[-1]}"
    if len(sizing.seeds) == 1:
        seeds = f"seed {sizing.seeds[0]}"
    notes = [f"each candidate simulated on {seeds}, {sizing.level}; the worst seed counts"]
    if sizing.chosen is not None and not sizing.monotone:
        notes.append("candidates are not monotone: the next easier one misses the goal")
    return notes

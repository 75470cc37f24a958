"""The candidates of `melisma plan --candidates`: what other budgets and deadlines would give."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.table_view import FigureTable
from melisma.service.plan_candidates import PlanCandidate


def candidates_view(candidates: Sequence[PlanCandidate], *, has_prices: bool) -> RenderableType:
    """Return a row for each candidate: when its tasks end, and what it costs."""
    names = list(dict.fromkeys(task.name for each in candidates for task in each.tasks))
    titles = ("candidate", *(f"{name} ends" for name in names))
    titles += ("cost of a round", "cost") if has_prices else ()
    rows = [_row(each, names, has_prices=has_prices) for each in candidates if each.feasible]
    reasons = [Text(f"{each.change}: no plan: {each.reason}") for each in candidates if each.reason]
    return Group(*reasons, *([FigureTable(titles, rows)] if rows else []))


def _row(candidate: PlanCandidate, names: list[str], *, has_prices: bool) -> tuple[str, ...]:
    ends = {task.name: f"{task.ends_s:,.0f} s" for task in candidate.tasks}
    first = sum(task.round_cost for task in candidate.tasks if task.begins_s == 0)
    costs = (f"{first:,.1f}", f"{candidate.cost:,.1f}") if has_prices else ()
    return candidate.change, *(ends.get(name, "-") for name in names), *costs

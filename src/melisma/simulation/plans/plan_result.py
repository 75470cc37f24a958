"""The plan of one scheme with its forecast, as text, a table and JSON."""

import json
from dataclasses import dataclass
from html import escape
from typing import Any

from melisma.runs.report_tables import MAX_HTML_ROWS
from melisma.simulation.comparison.comparison_table import ComparisonTable
from melisma.simulation.plans.plan_report import PlanReport, is_met


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How much each learner would train in a cycle, or why there is no plan.

    `figures` are those of ``melisma plan --json``.
    """

    figures: PlanReport

    def __repr__(self) -> str:
        return f"Plan(scheme={self.scheme!r}, feasible={self.feasible}, is_met={self.is_met})"

    def __str__(self) -> str:
        return "\n".join(filter(None, [self._heading, str(self.table()) if self.feasible else ""]))

    @property
    def scheme(self) -> str:
        """The scheme."""
        return str(self.figures["scheme"])

    @property
    def feasible(self) -> bool:
        """Whether there is a plan."""
        return bool(self.figures["feasible"])

    @property
    def reason(self) -> str:
        """Why there is no plan; empty if there is one."""
        return str(self.figures.get("reason", ""))

    @property
    def is_met(self) -> bool:
        """Whether there is a plan, and it keeps deadlines and budget."""
        return is_met(self.figures)

    @property
    def learners(self) -> list[dict[str, Any]]:
        """A row for each learner; none without a plan."""
        return list(self.figures.get("learners", ()))

    @property
    def forecast(self) -> dict[str, Any] | None:
        """How many learners are awake, and how much arrives in time; None if it is not known."""
        return self.figures.get("forecast")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON values of ``melisma plan --json``."""
        values: dict[str, Any] = json.loads(plan_json(self.figures))
        return values

    def table(self) -> ComparisonTable:
        """Return a row for each of the first learners."""
        rows = list(self.figures["learners"].first(MAX_HTML_ROWS)) if self.feasible else []
        titles = tuple(name for name in (rows[0] if rows else {}) if name != "late")
        cells = [tuple(_format(row[name]) for name in titles) for row in rows]
        return ComparisonTable(("learner", *titles[1:]), tuple(cells))

    def _repr_html_(self) -> str:
        table = self.table()._repr_html_() if self.feasible else ""
        return f"<p>{escape(self._heading)}</p>{table}"

    @property
    def _heading(self) -> str:
        tasks = ", ".join(self.figures["tasks"])
        if not self.feasible:
            return f"{tasks}: no plan by {self.scheme}: {self.reason}"
        kept = "keeps" if self.figures["keeps_deadline"] else "does not keep"
        deadlines = ", ".join(f"{seconds:.4g} s" for seconds in self.figures["deadline_s"])
        budget = "" if self.figures["keeps_budget"] else "; it is over the budget"
        count = len(self.figures["learners"])
        end = f"{kept} the deadline of {deadlines}{budget}"
        return f"{tasks}: {self.scheme}, {count:,} learners, {end}"


def plan_json(value: Any) -> str:
    """Return reports of plans as JSON."""
    return json.dumps(value, default=list, allow_nan=False)


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)

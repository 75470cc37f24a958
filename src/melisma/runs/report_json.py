"""A report as JSON values: the fields of each record, and figures that are computed from them."""

from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from melisma.cycle import events
from melisma.runs.assignments import Assignment, Assignments
from melisma.runs.capacity import LOSSES, TIME_USES
from melisma.runs.cycle_figures import Cycle
from melisma.runs.idleness import IdleGroup
from melisma.runs.report import Report
from melisma.runs.totals import LearnerTotal, LearnerTotals
from melisma.runs.unassigned import Unassigned

# Learners are listed up to this many; assignments of cycles up to this many learners times cycles.
MAX_LISTED = 10_000
# Properties that `as_dict` adds to the fields of each record.
FIGURES: dict[type, tuple[str, ...]] = {
    Assignment: ("planned_visits", "counted_visits", "capacity_used"),
    Cycle: (
        *("cycle_s", "met_deadline", "truancy", "fulfilment", "drop_rate", "occupancy"),
        *("capacity_used", "capacity_lost", "time_use", "time_use_s"),
        *("max_staleness", "average_staleness", "visits_counted", "visits_dropped"),
        *("bytes", "joules", "cost", "counts"),
    ),
    Report: (
        *("satisfaction", "deadline_misses", "mean_truancy", "fulfilment", "training_s"),
        *("capacity_used", "capacity_lost", "time_use", "outside_s", "outside_share"),
        *("max_staleness", "average_staleness", "visits_counted", "visits_dropped"),
        *("bytes", "joules", "cost", "accuracy", "loss", "learners", "clipped", "left_out"),
        *("failed_checks", "suspected", "idle"),
    ),
    IdleGroup: ("count", "largest_share"),
}
LeftOut = dict[type, tuple[str, ...]]
# Lists of each learner, and those of each learner in each cycle.
LEARNER_LISTS: LeftOut = {
    Report: ("names", "departed", "departures", "learners"),
    IdleGroup: ("names", "shares"),
}
CYCLE_LISTS: LeftOut = {Cycle: ("assignments", "unassigned", "time_use_s")}
COSTS: LeftOut = dict.fromkeys((Report, Cycle, LearnerTotal), ("cost",))
HIDDEN_FIELDS = ("trace", "rates")


def report_to_json(report: Report) -> dict[str, Any]:
    """Return everything but the trace; unknown numbers are None, as are lists that are too long.

    So is the cost on a fleet without prices.
    """
    # The totals of learners include the sums of cycles: compute them first, and both at once.
    learners = len(report.learners)
    left_out = _join(
        LEARNER_LISTS if learners > MAX_LISTED else {},
        CYCLE_LISTS if learners * len(report.cycles) > MAX_LISTED else {},
        {} if report.has_prices else COSTS,
    )
    values: dict[str, Any] = _to_json(report, left_out)
    return {
        **values,
        "learner_count": learners,
        "task": msgspec.to_builtins(report.task),
        "phases": list(events.PHASES),
        "losses": list(LOSSES),
        "time_uses": list(TIME_USES),
    }


def _join(*parts: LeftOut) -> LeftOut:
    kinds = {kind for part in parts for kind in part}
    return {kind: tuple(name for part in parts for name in part.get(kind, ())) for kind in kinds}


def _to_json(value: Any, left_out: LeftOut) -> Any:
    """Convert a record with its figures to JSON values."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _to_json(item, left_out) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = tuple(value.tolist())
    if isinstance(value, tuple | list | Assignments | LearnerTotals):
        return [_to_json(item, left_out) for item in value]
    if isinstance(value, Unassigned):
        return value.by_name()
    if isinstance(value, Path):
        return str(value)
    if not is_dataclass(value):
        return value
    names = [field.name for field in fields(value) if field.name not in HIDDEN_FIELDS]
    hidden = left_out.get(type(value), ())
    return {
        name: None if name in hidden else _to_json(getattr(value, name), left_out)
        for name in (*names, *FIGURES.get(type(value), ()))
    }

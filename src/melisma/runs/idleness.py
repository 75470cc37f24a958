"""Which learners idled in a run, how much, why, and what to change.

A learner idles whenever it does not train: between its dispatch and the deadline of each cycle,
whatever `capacity.TIME_USES` names for that time, and in cycles in which it was present but had no
assignment, for the mean length of a cycle. Its share is that time as a fraction of all its time in
the run. Learners with a share of at least `MIN_SHARE` are grouped by their largest cause, and
`RULES` says what to change about it. Cycles in which a learner was absent are no time of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from melisma.fleet.array_types import Floats
from melisma.fleet.task import Task
from melisma.runs.capacity import TIME_USES

if TYPE_CHECKING:
    from melisma.runs.report import Report

MIN_SHARE = 0.1
UNASSIGNED_CAUSES = ("without work", "not ready")
CAUSES = (*TIME_USES[1:], *UNASSIGNED_CAUSES)


@dataclass(frozen=True)
class IdleGroup:
    """Learners that idled for the same cause: `shares` of each one's time, the largest first.

    `reason` explains the cause, and `change` says what to do about it.
    """

    cause: str
    names: tuple[str, ...]
    shares: tuple[float, ...]
    reason: str
    change: str

    @property
    def count(self) -> int:
        """The number of learners."""
        return len(self.names)

    @property
    def largest_share(self) -> float:
        """The share of the learner that idled most."""
        return self.shares[0]


def find_idle(report: "Report") -> tuple[IdleGroup, ...]:
    """Return the groups of learners that idled, by the largest share of any of them."""
    seconds = _seconds_by_cause(report)
    total_s = report.learners.time_use_s[:, 0] + seconds.sum(axis=1)
    shares = np.divide(seconds.sum(axis=1), total_s, out=np.zeros(len(total_s)), where=total_s > 0)
    idle = np.flatnonzero(shares >= MIN_SHARE)
    causes = seconds[idle].argmax(axis=1)
    groups = []
    for code in np.unique(causes).tolist():
        members = idle[causes == code]
        members = members[np.argsort(-shares[members], kind="stable")]
        reason, change = RULES[CAUSES[code]]
        groups.append(
            IdleGroup(
                CAUSES[code],
                tuple(report.names[learner] for learner in members.tolist()),
                tuple(shares[members].tolist()),
                reason,
                change(report.task),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.largest_share))


def _seconds_by_cause(report: "Report") -> Floats:
    """Return the seconds without training of each learner, by `CAUSES`."""
    totals = report.learners
    lengths = [cycle.deadline_s for cycle in report.ended_cycles]
    cycle_s = float(np.mean(lengths)) if lengths else 0.0
    unassigned = np.stack([totals.without_work, totals.not_ready], axis=1) * cycle_s
    return np.concatenate([totals.time_use_s[:, 1:], unassigned], axis=1)


def _longer(task: Task) -> str:
    """Return the setting that makes cycles longer."""
    if task.total_s is None:
        return "try a longer deadline_s"
    return "try a larger total_s" if task.finish_by is None else "try a later finish_by"


def _avoid_fetching(task: Task) -> str:
    return "try more passes, or a faster link" if task.overlap else "try overlap = true"


def _avoid_waiting(task: Task) -> str:
    return "try smaller shard_samples" if task.extension else "try extension = true"


def _shorten(task: Task) -> str:
    """Return the setting that lets learners go on, or ends cycles earlier."""
    if not task.extension:
        return "try extension = true"
    return "try a shorter deadline_s" if task.total_s is None else "try smaller shard_samples"


def _balance(task: Task) -> str:
    """Return the setting that lets learners finish at the same time."""
    if not task.extension:
        return "try extension = true"
    return (
        "try smaller shard_samples"
        if task.scheme == "proportional"
        else ("try scheme = 'proportional'")
    )


# The reason of each cause, and what to do about it in a task.
RULES: dict[str, tuple[str, Callable[[Task], str]]] = {
    "fixed": (
        "slow link: model and update take long",
        lambda task: f"{_longer(task)}, or a smaller model",
    ),
    "fetching": ("slow link: waited for shards", _avoid_fetching),
    "waiting for work": ("waited for work", _avoid_waiting),
    "halted early": (
        "stopped early to be in time",
        lambda task: f"{_longer(task)}, or a lower caution",
    ),
    "waiting for others": (
        "done, waited for others",
        _balance,
    ),
    "closed early": (
        "all were done before the deadline",
        _shorten,
    ),
    "late": (
        "updates came too late to count",
        lambda task: f"{_longer(task)}, or a higher caution",
    ),
    "refused": ("updates were refused", lambda _: "see the reasons in the trace"),
    "dropped": ("work was dropped", lambda _: "see the reasons in the trace"),
    "gone": (
        "left before the update",
        lambda _: "see why it left, and check power and network if it fell silent",
    ),
    "without work": (
        "no shard was left, or none fitted into a cycle",
        lambda task: f"try smaller shard_samples, or {_longer(task).removeprefix('try ')}",
    ),
    "not ready": ("measured while others trained", _longer),
}

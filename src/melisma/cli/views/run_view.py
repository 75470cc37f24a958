"""The view of a run in progress: the time in the cycle, and the state of each learner.

It shows only what the orchestrator may know. If learners do not disclose progress to the scheme,
that is the number of shards, whether the learner requests files, and whether it has handed in its
update. A learner that has requested a file within `FETCHING_S` is fetching; it may train as well.
More than `MAX_LEARNERS` are folded into groups by name, and only outliers are listed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isnan

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from melisma.allocation.schemes import get_scheme
from melisma.cli.views.table_view import DeadlineBar, format_count
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import COUNTED, NO_ASSIGNMENTS, STATUSES, Assignment, Assignments
from melisma.runs.cycle_figures import Cycle
from melisma.runs.progress import RunProgress
from melisma.text import visible_part

MAX_LEARNERS, MAX_MISSING_NAMED, MAX_MEASURING_NAMED = 20, 5, 3
MAX_GROUPS, MAX_OUTLIERS = 12, 6
FETCHING_S = 1.0
NUMBER_AT_END = re.compile(r"[-_ ]?\d+$")
MIN_SHARE = 0.005  # of the capacity of all learners, to be printed
# Problems come first.
STATES = (
    *("late", "refused", "dropped", "left", "training", "fetching"),
    *("measuring", "joining", "waiting", "carried", "counted"),
)
PROBLEMS = STATES[:4]
STYLES = dict.fromkeys(PROBLEMS, "red") | {"counted": "green"}
# Of states that are named otherwise in a status.
LABELS = {"counted": "handed in"}


@dataclass(frozen=True)
class LearnerRow:
    """The state of one learner, or of a group."""

    name: str
    state: str
    shards: str = ""
    done: str = ""
    expected_s: float = float("nan")
    late_s: float = 0.0

    def cells(self, *, private: bool) -> tuple[RenderableType, ...]:
        """Return the cells of the row; where progress is private, without a prediction."""
        expected = "" if isnan(self.expected_s) else f"{self.expected_s:.1f} s"
        return (
            Text(self.name),
            Text(LABELS.get(self.state, self.state), style=STYLES.get(self.state, "")),
            self.shards,
            self.done,
            *(() if private else (expected,)),
            Text(f"{self.late_s:.1f} s", style="red") if self.late_s > 0 else "",
        )


@dataclass(frozen=True, eq=False)
class LearnerStates:
    """The states of all named learners in columns; `state` is an index into `STATES`.

    `row` is the index of the learner's assignment, or -1.
    """

    learner: Ints
    row: Ints
    state: Ints
    expected_s: Floats
    late_s: Floats

    @property
    def outliers(self) -> Ints:
        """The indices of learners with problems, the latest first, then of the slowest one."""
        problems = np.flatnonzero(self.state < len(PROBLEMS))
        problems = problems[np.lexsort((-self.late_s[problems], self.state[problems]))]
        if problems.size or not np.isfinite(self.expected_s).any():
            return problems[:MAX_OUTLIERS]
        return np.array([np.nanargmax(self.expected_s)])


def run_view(progress: RunProgress, now_s: float, fetching: Collection[int] = ()) -> RenderableType:
    """Return the view of the run at `now_s`, on the clock of its trace.

    `fetching` are the numbers of learners that have requested a file within `FETCHING_S`.
    """
    work = _current_assignments(progress)
    states = _learner_states(progress, work, now_s, fetching)
    shown = range(states.learner.size)
    groups: list[LearnerRow] = []
    if states.learner.size > MAX_LEARNERS:
        groups, shown = _group_rows(progress, work, states), states.outliers.tolist()
    rows = groups + [_learner_row(progress, work, states, index) for index in shown]
    table = _table(rows, private=_is_private(progress))
    return Group(_heading(progress), _time_line(progress, now_s), table)


def _is_private(progress: RunProgress) -> bool:
    return not get_scheme(progress.task.scheme).reports_progress


def _group_rows(
    progress: RunProgress, work: Assignments, states: LearnerStates
) -> list[LearnerRow]:
    """Return a row for each group of learners, by name without the number at its end."""
    names = np.array([_group_name(name) for name in progress.names[states.learner].tolist()])
    groups, members, counts = np.unique(names, return_inverse=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")
    rows = [
        _group_row(str(groups[group]), work, states, np.flatnonzero(members == group))
        for group in largest[:MAX_GROUPS].tolist()
    ]
    others = np.flatnonzero(np.isin(members, largest[MAX_GROUPS:]))
    return rows + ([_group_row("others", work, states, others)] if others.size else [])


@lru_cache(maxsize=100_000)
def _group_name(name: str) -> str:
    return NUMBER_AT_END.sub("", name) or name


def _group_row(name: str, work: Assignments, states: LearnerStates, members: Ints) -> LearnerRow:
    """Return the number of members in each state and the sum of their shards."""
    counts = np.bincount(states.state[members], minlength=len(STATES)).tolist()
    by_state = ", ".join(
        f"{n:,} {LABELS.get(state, state)}" for n, state in zip(counts, STATES, strict=True) if n
    )
    rows = states.row[members]
    shards = int(work.shards[rows[rows >= 0]].sum())
    return LearnerRow(f"{name} ({members.size:,})", by_state, f"{shards:,}" if shards else "")


def cycle_line(cycle: Cycle) -> str:
    """Return the result of a finished cycle in one line, for output without a terminal."""
    heading = f"cycle {cycle.number}:"
    if cycle.ending == "running":
        return f"{heading} running"
    if cycle.ending != "aggregated":
        return visible_part(f"{heading} {cycle.ending}: {cycle.reason}")
    time = f"{cycle.cycle_s:.1f} of {cycle.deadline_s:g} s"
    if not cycle.met_deadline:
        late_s = cycle.cycle_s - cycle.deadline_s
        time = f"{late_s:.2g} s past its deadline of {cycle.deadline_s:g} s"
    capacity = format_capacity(
        cycle.capacity_used, cycle.capacity_lost, so_far=_awaits_late_updates(cycle)
    )
    score = format_score(cycle.accuracy, cycle.loss)
    guarded = (
        _guarded_names("clipped", cycle.clipped),
        _guarded_names("left out", cycle.left_out),
        _guarded_names("failed audit", cycle.failed_checks),
    )
    parts = (time, _update_count(cycle), *guarded, score, capacity)
    return visible_part(f"{heading} {'; '.join(part for part in parts if part)}")


def _awaits_late_updates(cycle: Cycle) -> bool:
    """Return whether updates are late that may still join the average of a later cycle."""
    return cycle.carries_late and bool(cycle.assignments.with_status("late").any())


def _update_count(cycle: Cycle) -> str:
    """Return how many learners have an update that counts, and the first others with the cause."""
    work, idle = cycle.assignments, cycle.unassigned
    counted = np.unique(work.learner[work.with_status(*COUNTED)])
    last = np.flatnonzero(np.diff(work.learner, append=-1))  # of each learner
    missing = last[~np.isin(work.learner[last], counted)]
    first = [work[index] for index in missing[:MAX_MISSING_NAMED].tolist()]
    causes = [(row.name, _status_so_far(row.status, cycle)) for row in first]
    causes += idle.first(MAX_MISSING_NAMED - len(first))
    names = "".join(f", {_join_names(causes, cause)} {cause}" for cause in _distinct(causes))
    unnamed = missing.size + len(idle) - len(causes)
    more = f", {unnamed:,} more missing" if unnamed else ""
    return f"{counted.size:,} of {format_count(last.size + len(idle), 'update')}{names}{more}"


def _distinct(causes: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(cause for _, cause in causes))


def _join_names(causes: list[tuple[str, str]], cause: str) -> str:
    """Return the names of the learners with one cause."""
    *names, last = (name for name, each in causes if each == cause)
    return f"{', '.join(names)} and {last}" if names else last


def _status_so_far(status: str, cycle: Cycle) -> str:
    return "late so far" if status == "late" and cycle.carries_late else status


def _guarded_names(label: str, names: tuple[str, ...]) -> str:
    """Return the first learners whose update was clipped or left out; empty if none was."""
    more = f" and {len(names) - MAX_MISSING_NAMED} more" if len(names) > MAX_MISSING_NAMED else ""
    return f"{label}: {', '.join(names[:MAX_MISSING_NAMED])}{more}" if names else ""


def format_score(accuracy: float, loss: float) -> str:
    """Return accuracy and loss as far as they are known; a NaN loss is printed."""
    if isnan(accuracy) and isnan(loss):
        return "not evaluated"
    known = "" if isnan(accuracy) else f"accuracy {accuracy:.1%}, "
    return f"{known}loss {loss:.4g}"


def format_capacity(used: float, lost: dict[str, float], *, so_far: bool = False) -> str:
    """Return the capacity used and the losses, largest first; empty if they are unknown.

    Losses that would be printed as 0 % are left out; with `so_far`, late updates may change both.
    """
    if isnan(used):
        return ""
    shares = sorted(((share, cause) for cause, share in lost.items()), reverse=True)
    losses = [f"{cause} {share:.0%}" for share, cause in shares if share >= MIN_SHARE]
    capacity = f"capacity used {used:.0%}" + " so far" * so_far
    return capacity + (f", lost: {', '.join(losses)}" if losses else "")


def _heading(progress: RunProgress) -> Text:
    task, cycle, scored = progress.task, progress.current_cycle, progress.evaluated_cycle
    number = max(progress.collecting_cycle, cycle.number if cycle else 0, 1)
    head = Text(f"{task.name}: {task.scheme}, {task.describe_cycle(number)}", style="bold")
    return head.append(
        f"  {format_score(scored.accuracy, scored.loss)}" if scored else "", "not bold"
    )


def _time_line(progress: RunProgress, now_s: float) -> RenderableType:
    """Return the time in the cycle and its deadline, or the stage between cycles."""
    cycle = progress.current_cycle
    if progress.outcome != "running":
        return Text(visible_part(f"{progress.outcome}: {progress.reason}"))
    if progress.collecting and (cycle is None or cycle.ending != "running"):
        return Text(_measuring_line(progress))
    if cycle is None:
        joined = len(progress.joined - progress.left)
        return Text(f"{joined} of {len(progress.names)} learners joined")
    if cycle.ending != "running":
        return Text("averaging and evaluating")
    seconds = max(0.0, now_s - cycle.began_s)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_row(
        f"{seconds:.1f} of {cycle.deadline_s:g} s ({seconds / cycle.deadline_s:.0%}), and "
        f"{cycle.tail_s:.2g} s for late updates",
        DeadlineBar(seconds, max(seconds, cycle.deadline_s + cycle.tail_s), cycle.deadline_s),
    )
    return grid


def _measuring_line(progress: RunProgress) -> str:
    """Return the names of the first learners that are measuring."""
    measuring = progress.collecting.numbers
    names = ", ".join(progress.names[measuring[:MAX_MEASURING_NAMED]])
    more = (
        f" and {measuring.size - MAX_MEASURING_NAMED} more"
        if measuring.size > MAX_MEASURING_NAMED
        else ""
    )
    return f"measuring: {names}{more}"


def _current_assignments(progress: RunProgress) -> Assignments:
    """Return the assignments of the cycle, none once the next cycle collects costs or bounds."""
    cycle = progress.current_cycle
    return (
        NO_ASSIGNMENTS
        if cycle is None or cycle.number < progress.collecting_cycle
        else cycle.assignments
    )


def _learner_states(
    progress: RunProgress, work: Assignments, now_s: float, fetching: Collection[int]
) -> LearnerStates:
    count = progress.names.size
    learner, row = np.flatnonzero(progress.names != ""), np.full(count, -1)
    row[work.learner] = np.arange(len(work))
    left, measuring = progress.left.mask(count), progress.collecting.mask(count)
    state = np.where(
        left,
        _state_code("left"),
        np.where(measuring, _state_code("measuring"), _state_code("waiting")),
    )
    state[~progress.joined.mask(count) & ~left] = _state_code("joining")
    expected_s, late_s = np.full(count, np.nan), np.zeros(count)
    busy = np.flatnonzero(row >= 0)
    if busy.size and progress.current_cycle is not None:
        rows, end_s = row[busy], progress.current_cycle.began_s + progress.current_cycle.deadline_s
        late_s[busy], busy_state = _busy_states(work, rows, now_s - end_s, end_s)
        kept = left[busy] | (work.status[rows] == STATUSES.index("left"))
        state[busy] = np.where(kept, state[busy], busy_state)
        requested = np.isin(np.arange(count), list(fetching))
        state[requested & (state == _state_code("training"))] = _state_code("fetching")
        expected_s[busy] = work.predicted_s[rows]
    return LearnerStates(
        learner, row[learner], state[learner], expected_s[learner], late_s[learner]
    )


def _busy_states(work: Assignments, rows: Ints, over_s: float, end_s: float) -> tuple[Floats, Ints]:
    """Return lateness and state of assignments due at `end_s`, which was `over_s` seconds ago."""
    training, counted = work.with_status("training")[rows], work.with_status("counted")[rows]
    late_s = np.where(training, over_s, np.where(counted, work.arrived_s[rows] - end_s, 0.0))
    codes = np.array([STATES.index(status) if status in STATES else 0 for status in STATUSES])
    state = np.where(training & (over_s > 0), _state_code("late"), codes[work.status[rows]])
    return np.maximum(late_s, 0.0), state


def _state_code(state: str) -> int:
    return STATES.index(state)


def _learner_row(
    progress: RunProgress, work: Assignments, states: LearnerStates, index: int
) -> LearnerRow:
    """Return the row of one learner."""
    name = progress.names[states.learner[index]]
    row = LearnerRow(
        name=name,
        state=STATES[states.state[index]],
        expected_s=float(states.expected_s[index]),
        late_s=float(states.late_s[index]),
    )
    if states.row[index] < 0:
        return row
    assignment = work[int(states.row[index])]
    done = _format_done(assignment, private=_is_private(progress))
    return replace(row, shards=str(assignment.shards), done=done)


def _format_done(work: Assignment, *, private: bool) -> str:
    """Return the fraction trained, known from the update, or from progress if disclosed."""
    if private and work.status not in COUNTED:
        return ""
    return f"{min(1.0, work.visits / max(work.planned_visits, 1)):.0%}"


def _table(rows: list[LearnerRow], *, private: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("learner", overflow="fold")
    table.add_column("state", overflow="fold")
    for title in ("shards", "done", *(() if private else ("expected",)), "late by"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells(private=private))
    return table

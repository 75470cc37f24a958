"""What the terminal shows while a run goes on: the cycle against its deadline, and each learner.

It shows what the orchestrator may know, no more: where a scheme lets nothing out about progress,
progress is "private" until the update is in.
"""

from dataclasses import dataclass, replace
from math import isnan

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from melisma.allocation.schemes import get_scheme
from melisma.cli.views.plan_table import Bar
from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.runs.assignments import NO_ASSIGNMENTS, STATUSES, Assignment, Assignments
from melisma.runs.progress import RunProgress
from melisma.runs.report import Cycle

SHOWN, TOLD, NAMED = 20, 5, 3
# Those who need a look come first.
STATES = ("late", "refused", "dropped", "gone", "training", "measuring", "waiting", "counted")
STYLES = {"late": "red", "refused": "red", "dropped": "red", "gone": "red", "counted": "green"}


@dataclass(frozen=True)
class Row:
    """One learner as it stands."""

    name: str
    state: str
    shards: str = "-"
    done: str = "-"
    expected_s: float = float("nan")
    late_s: float = 0.0

    def cells(self) -> tuple[RenderableType, ...]:
        """As the table has them."""
        return (
            Text(self.name),
            Text(self.state, style=STYLES.get(self.state, "")),
            self.shards,
            self.done,
            "-" if isnan(self.expected_s) else f"{self.expected_s:.1f} s",
            Text(f"{self.late_s:.1f} s", style="red") if self.late_s > 0 else "-",
        )


@dataclass(frozen=True, eq=False)
class Standing:
    """All learners that have a name as they stand, in columns; `state` is a place in `STATES`.

    `row` is that of their work, or -1.
    """

    learner: Ints
    row: Ints
    state: Ints
    expected_s: Floats
    late_s: Floats

    def first(self) -> Ints:
        """Places of all in their order, or of those who need a look first, then of the slowest."""
        if self.learner.size <= SHOWN:
            return np.arange(self.learner.size)
        longest_s = np.fmax(self.late_s, self.expected_s)
        return np.lexsort((-longest_s, self.state))[:SHOWN]


def view(story: RunProgress, now_s: float) -> RenderableType:
    """The run at this instant, on the clock of its trace."""
    work = _work(story)
    standing = _standing(story, work, now_s)
    rows = [_row(story, work, standing, place) for place in standing.first().tolist()]
    return Group(_head(story), _time(story, now_s), _table(rows), *_rest(standing))


def cycle_line(cycle: Cycle) -> str:
    """A cycle that is over in one line, for where there is no terminal."""
    start = f"cycle {cycle.number}:"
    if cycle.ending == "running":
        return f"{start} running"
    if cycle.ending != "aggregated":
        return f"{start} {cycle.ending}: {cycle.reason}"
    time = f"{cycle.waited_s:.1f} of {cycle.deadline_s:g} s"
    if not cycle.met_deadline:
        late_s = cycle.waited_s - cycle.deadline_s
        time = f"{late_s:.2g} s past its deadline of {cycle.deadline_s:g} s"
    who = _who_came(cycle.assignments)
    return f"{start} {time}; {who}; {score(cycle.accuracy, cycle.loss)}"


def _who_came(work: Assignments) -> str:
    """How many, and who did not, by name where there are few."""
    absent = np.flatnonzero(~work.with_status("counted"))
    some = [work[place] for place in absent[:TOLD].tolist()]
    named = "".join(f", {each.name} {each.status}" for each in some)
    more = f", {absent.size - TOLD} more not" if absent.size > TOLD else ""
    return f"{len(work) - absent.size} of {len(work)} in{named}{more}"


def score(accuracy: float, loss: float) -> str:
    """How good the model is, as far as it is known; a loss that is no number is told."""
    if isnan(accuracy) and isnan(loss):
        return "not evaluated"
    known = "" if isnan(accuracy) else f"accuracy {accuracy:.1%}, "
    return f"{known}loss {loss:.4g}"


def _head(story: RunProgress) -> Text:
    task, cycle, scored = story.task, story.current_cycle, story.evaluated_cycle
    number = max(story.collecting_cycle, cycle.number if cycle else 0, 1)
    head = Text(f"{task.name}: {task.scheme}, cycle {number} of {task.cycles}", style="bold")
    return head.append(f"  {score(scored.accuracy, scored.loss)}" if scored else "", "not bold")


def _time(story: RunProgress, now_s: float) -> RenderableType:
    """The time in the cycle against its deadline, or what goes on between cycles."""
    cycle = story.current_cycle
    if story.outcome != "running":
        return Text(f"{story.outcome}: {story.reason}")
    if story.collecting:
        return Text(_measuring(story))
    if cycle is None:
        there = len(story.joined - story.left)
        return Text(f"{there} of {len(story.names)} learners are there")
    if cycle.ending != "running":
        return Text("averaging and evaluating")
    seconds = max(0.0, now_s - cycle.began_s)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_row(
        f"{seconds:.1f} of {cycle.deadline_s:g} s, and {cycle.tail_s:.2g} s for who is late",
        Bar(seconds, max(seconds, cycle.deadline_s + cycle.tail_s), cycle.deadline_s),
    )
    return grid


def _measuring(story: RunProgress) -> str:
    """Who is waited for, by name where there are few."""
    who = story.collecting.numbers
    names = ", ".join(story.names[who[:NAMED]])
    more = f" and {who.size - NAMED} more" if who.size > NAMED else ""
    return f"measuring what they can do: {names}{more}"


def _work(story: RunProgress) -> Assignments:
    """Work of a cycle counts until the next one asks learners."""
    cycle = story.current_cycle
    return (
        NO_ASSIGNMENTS
        if cycle is None or cycle.number < story.collecting_cycle
        else cycle.assignments
    )


def _standing(story: RunProgress, work: Assignments, now_s: float) -> Standing:
    count = story.names.size
    learner, row = np.flatnonzero(story.names != ""), np.full(count, -1)
    row[work.learner] = np.arange(len(work))
    gone, measuring = story.left.mask(count), story.collecting.mask(count)
    state = np.where(gone, _code("gone"), np.where(measuring, _code("measuring"), _code("waiting")))
    expected_s, late_s = np.full(count, np.nan), np.zeros(count)
    busy = np.flatnonzero(row >= 0)
    if busy.size and story.current_cycle is not None:
        rows, end_s = row[busy], story.current_cycle.began_s + story.current_cycle.deadline_s
        late_s[busy], said = _at_work(work, rows, now_s - end_s, end_s)
        kept = gone[busy] | (work.status[rows] == STATUSES.index("left"))
        state[busy] = np.where(kept, state[busy], said)
        expected_s[busy] = work.predicted_s[rows]
    return Standing(learner, row[learner], state[learner], expected_s[learner], late_s[learner])


def _at_work(work: Assignments, rows: Ints, over_s: float, end_s: float) -> tuple[Floats, Ints]:
    """How late work is that was to be in by `end_s`, so long ago, and how it stands."""
    training, came = work.with_status("training")[rows], work.with_status("counted")[rows]
    late_s = np.where(training, over_s, np.where(came, work.arrived_s[rows] - end_s, 0.0))
    codes = np.array([STATES.index(each) if each in STATES else 0 for each in STATUSES])
    state = np.where(training & (over_s > 0), _code("late"), codes[work.status[rows]])
    return np.maximum(late_s, 0.0), state


def _code(state: str) -> int:
    return STATES.index(state)


def _row(story: RunProgress, work: Assignments, standing: Standing, place: int) -> Row:
    """What is known of one learner."""
    name = story.names[standing.learner[place]]
    row = Row(
        name=name,
        state=STATES[standing.state[place]],
        expected_s=float(standing.expected_s[place]),
        late_s=float(standing.late_s[place]),
    )
    if standing.row[place] < 0:
        return row
    each = work[int(standing.row[place])]
    private = get_scheme(story.task.scheme).during != "progress"
    return replace(row, shards=str(each.shards), done=_done(each, private=private))


def _done(work: Assignment, *, private: bool) -> str:
    """An update tells what was done, and progress does where it is told."""
    if private and work.status != "counted":
        return "private" if work.status == "training" else "-"
    return f"{min(1.0, work.visits / max(work.planned_visits, 1)):.0%}"


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("learner", overflow="fold")
    table.add_column("state", no_wrap=True)
    for title in ("shards", "done", "expected", "late by"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    return table


def _rest(standing: Standing) -> list[Text]:
    if standing.learner.size <= SHOWN:
        return []
    counts = np.bincount(standing.state, minlength=len(STATES)).tolist()
    each = ", ".join(f"{n} {state}" for n, state in zip(counts, STATES, strict=True) if n)
    return [Text(f"{SHOWN} of {standing.learner.size} learners; in all {each}")]

"""What the terminal shows while a run goes on: the cycle against its deadline, and each learner.

It shows what the orchestrator may know, no more: where a scheme lets nothing out about progress,
progress is "private" until the update is in.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import isnan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from melisma.allocation.schemes import scheme_named
from melisma.cli.plan_table import Bar
from melisma.cycle.report import Assignment, Cycle
from melisma.cycle.story import Story

SHOWN, TOLD = 20, 5
# Those who need a look come first.
STATES = ("late", "refused", "dropped", "gone", "training", "measuring", "waiting", "in")
STYLES = {"late": "red", "refused": "red", "dropped": "red", "gone": "red", "in": "green"}


@dataclass(frozen=True)
class Row:
    """One learner as it stands."""

    name: str
    state: str
    shards: str = "-"
    done: str = "-"
    expected_s: float = float("nan")
    late_s: float = 0.0

    @property
    def rank(self) -> tuple[int, float]:
        """Late ones first, then those who take longest."""
        expected_s = 0.0 if isnan(self.expected_s) else self.expected_s
        return STATES.index(self.state), -max(expected_s, self.late_s)

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


def view(story: Story, now_s: float) -> RenderableType:
    """The run at this instant, on the clock of its trace."""
    rows = _rows(story, now_s)
    return Group(_head(story), _time(story, now_s), _table(rows), *_rest(rows))


def cycle_line(cycle: Cycle) -> str:
    """A cycle that is over in one line, for where there is no terminal."""
    start = f"cycle {cycle.number}:"
    if cycle.ending == "under way":
        return f"{start} under way"
    if cycle.ending != "averaged":
        return f"{start} {cycle.ending}: {cycle.reason}"
    time = f"{cycle.waited_s:.1f} of {cycle.deadline_s:g} s"
    if not cycle.by_deadline:
        late_s = cycle.waited_s - cycle.deadline_s
        time = f"{late_s:.2g} s past its deadline of {cycle.deadline_s:g} s"
    came = sum(each.status == "in" for each in cycle.assignments)
    absent = [f"{each.name} {each.status}" for each in cycle.assignments if each.status != "in"]
    if len(absent) > TOLD:
        absent[TOLD:] = [f"{len(absent) - TOLD} more not"]
    who = f"{came} of {len(cycle.assignments)} in" + "".join(f", {each}" for each in absent)
    return f"{start} {time}; {who}; {score(cycle.accuracy, cycle.loss)}"


def score(accuracy: float, loss: float) -> str:
    """How good the model is, as far as it is known; a loss that is no number is told."""
    if isnan(accuracy) and isnan(loss):
        return "not evaluated"
    known = "" if isnan(accuracy) else f"accuracy {accuracy:.1%}, "
    return f"{known}loss {loss:.4g}"


def _head(story: Story) -> Text:
    task, cycle, scored = story.task, story.cycle, story.scored
    number = max(story.asked, cycle.number if cycle else 0, 1)
    head = Text(f"{task.name}: {task.scheme}, cycle {number} of {task.cycles}", style="bold")
    return head.append(f"  {score(scored.accuracy, scored.loss)}" if scored else "", "not bold")


def _time(story: Story, now_s: float) -> RenderableType:
    """The time in the cycle against its deadline, or what goes on between cycles."""
    cycle = story.cycle
    if story.outcome != "under way":
        return Text(f"{story.outcome}: {story.reason}")
    if story.measuring:
        return Text(_measuring(story))
    if cycle is None:
        there = len(story.joined - story.gone.keys())
        return Text(f"{there} of {len(story.names)} learners are there")
    if cycle.ending != "under way":
        return Text("averaging and evaluating")
    seconds = max(0.0, now_s - cycle.began_s)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_row(
        f"{seconds:.1f} of {cycle.deadline_s:g} s, and {cycle.tail_s:.2g} s for who is late",
        Bar(seconds, max(seconds, cycle.deadline_s + cycle.tail_s), cycle.deadline_s),
    )
    return grid


def _measuring(story: Story) -> str:
    """Who is waited for, by name where there are few."""
    names = [story.names[learner] for learner in sorted(story.measuring)]
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"measuring what they can do: {some}"


def _rows(story: Story, now_s: float) -> list[Row]:
    """Work of a cycle counts until the next one asks learners."""
    cycle = story.cycle
    if cycle is None or cycle.number < story.asked:
        return [Row(name, _state(story, k)) for k, name in enumerate(story.names) if name]
    work = {each.learner: each for each in cycle.assignments}
    private = scheme_named(story.task.scheme).during != "progress"
    found = []
    for learner, name in enumerate(story.names):
        row = Row(name, _state(story, learner))
        if learner in work:
            end_s = cycle.began_s + cycle.deadline_s
            row = _at_work(row, work[learner], now_s, end_s)
            row = replace(row, done=_done(work[learner], private=private))
        found += [row] if name else []
    return found


def _state(story: Story, learner: int) -> str:
    if learner in story.gone:
        return "gone"
    return "measuring" if learner in story.measuring else "waiting"


def _at_work(row: Row, work: Assignment, now_s: float, end_s: float) -> Row:
    """The row with what is known of its work, which was to be in by `end_s`."""
    training = work.status == "training"
    over_s = {"training": now_s, "in": work.arrived_s}.get(work.status, end_s) - end_s
    state = "late" if training and over_s > 0 else work.status
    return replace(
        row,
        state=row.state if work.status == "left" or row.state == "gone" else state,
        shards=str(work.shards),
        expected_s=work.predicted_s,
        late_s=max(0.0, over_s),
    )


def _done(work: Assignment, *, private: bool) -> str:
    """An update tells what was done, and progress does where it is told."""
    if private and work.status != "in":
        return "private" if work.status == "training" else "-"
    return f"{min(1.0, work.visits / max(work.planned, 1)):.0%}"


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("learner", overflow="fold")
    table.add_column("state", no_wrap=True)
    for title in ("shards", "done", "expected", "late by"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in _first(rows):
        table.add_row(*row.cells())
    return table


def _first(rows: list[Row]) -> list[Row]:
    """All in their order, or those who need a look first."""
    return rows if len(rows) <= SHOWN else sorted(rows, key=lambda row: row.rank)[:SHOWN]


def _rest(rows: list[Row]) -> list[Text]:
    if len(rows) <= SHOWN:
        return []
    counts = Counter(row.state for row in rows)
    each = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return [Text(f"{SHOWN} of {len(rows)} learners; in all {each}")]

"""The status of a service: its tasks, and its devices."""

from math import nan

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.run_view import format_score
from melisma.cli.views.table_view import FigureTable
from melisma.live.service.owner_methods import ServedLearner, ServedTask, TasksStatus
from melisma.text import visible


def tasks_status_view(status: TasksStatus) -> RenderableType:
    """Return a table of tasks, why they wait, and a table of devices."""
    budget = "" if status.budget is None else f", budget {status.budget:g} a round"
    lines: list[RenderableType] = [
        Text(f"service {status.run}: {status.scheme}{budget}", style="bold")
    ]
    if status.tasks:
        titles = ("task", "state", "cycle", "score", "paid")
        lines.append(FigureTable(titles, [_task_row(task) for task in status.tasks]))
        lines += [
            Text(f"{task.name}: {visible(task.reason)}") for task in status.tasks if task.reason
        ]
    else:
        lines.append(Text("no task was submitted yet: melisma submit TASK.toml"))
    if not status.learners:
        return Group(*lines, Text("no device has joined yet"))
    titles = ("device", "works for", "address", "last seen", "price")
    return Group(*lines, FigureTable(titles, [_learner_row(each) for each in status.learners]))


def _task_row(task: ServedTask) -> tuple[str, ...]:
    last = "" if task.cycles is None else f" of {task.cycles}"
    scores = [nan if value is None else value for value in (task.accuracy, task.loss)]
    scored = task.accuracy is not None or task.loss is not None
    score = format_score(*scores) if scored else "-"
    return task.name, task.state, f"{task.cycle}{last}", score, f"{task.paid:g}"


def _learner_row(learner: ServedLearner) -> tuple[str, ...]:
    return (
        learner.name,
        learner.state,
        visible(learner.host or "-"),
        f"{learner.last_seen_s:.0f} s ago",
        f"{learner.price:g}",
    )

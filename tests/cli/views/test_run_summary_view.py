"""The last screen of a run: who idled, why, and what to change."""

from rich.console import Console

from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cycle import events
from melisma.runs.report import Report
from tests.runs.test_capacity import TraceByHand


def summary(report: Report) -> list[str]:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(run_summary_view(report))
    return captured.get().splitlines()


def trace_of(learners: int) -> Report:
    """Return a report in which learner k trains for 5 - k / 2 of 10 s and then waits."""
    trace = TraceByHand(learners)
    trace.dispatch(0.0, {k: [k] for k in range(learners)})
    for k in reversed(range(learners)):
        trace.update(5.0 - k / 2, k, 10, [0.0, 0.0, 0.0, 0.0, 5.0 - k / 2, 0.0])
    trace.close(10.0, dict.fromkeys(range(learners), 10.0))
    trace.add(events.Evaluated(at_s=10.5, cycle=1, loss=0.5, accuracy=0.9, seconds=0.5))
    return trace.report


def test_the_last_screen_names_who_idled_how_much_why_and_what_to_change() -> None:
    assert (
        "device-1 idle 55%, device-0 idle 50%: done, waited for others; "
        "try extension = true" in summary(trace_of(2))
    )


def test_of_many_idle_learners_the_first_three_are_named() -> None:
    (line,) = [line for line in summary(trace_of(6)) if "idle" in line]
    assert line.startswith(
        "device-5 idle 75%, device-4 idle 70%, device-3 idle 65% and 3 more learners 50% or more: "
    )

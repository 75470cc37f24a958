"""The last screen of a run: who idled, why, and what to change."""

from dataclasses import replace

from rich.console import Console

from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cycle import events
from melisma.runs.report import Report
from tests.runs.test_capacity import TraceByHand


def summary(report: Report, show: int = 20, **groups: range) -> list[str]:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(run_summary_view(report, show, groups))
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


def test_groups_are_summed_if_not_all_of_their_learners_are_listed() -> None:
    report, groups = trace_of(6), {"slow": range(4), "fast": range(4, 6)}
    lines = [line.split() for line in summary(report, 5, **groups)]
    figures = report.learners
    for name, members in groups.items():
        total = figures[members.start : members.stop]
        sums = [str(total.shards.sum()), str(total.counted_visits.sum())]
        assert [name, str(len(members)), *sums, "-"] in lines
    assert not any(line[:1] == ["group"] for line in map(str.split, summary(report, 6, **groups)))
    no_learners = summary(report, 0, **groups)
    assert not any(line.startswith("learner ") for line in no_learners)
    assert any(line.startswith("and 6 more (--show): ") for line in no_learners)


def test_learners_that_left_are_counted_by_cause() -> None:
    names = tuple(f"device-{number}" for number in range(6))
    reasons = (
        *("device-0, device-1, ...: battery empty",) * 2,
        "device-2: crashed",
        *("device-3: battery empty", "the disk: full", "device-5: battery empty"),
    )
    lines = summary(replace(trace_of(6), departed=names, departures=reasons))
    assert [line for line in lines if line.startswith("left: ")] == [
        "left: battery empty: 4 learners (device-0, device-1, device-3, device-5)",
        "left: device-2: crashed",
        "left: device-4: the disk: full",
    ]

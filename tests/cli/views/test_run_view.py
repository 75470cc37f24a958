import sys
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from math import nan
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from melisma.cli import output
from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cli.views.run_view import (
    MAX_OUTLIERS,
    cycle_line,
    format_capacity,
    format_score,
    run_view,
)
from melisma.cycle import commands, events
from melisma.runs.assignments import Assignments
from melisma.runs.capacity import LOSSES
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.runs.unassigned import Unassigned
from melisma.testing import FakeDevice, commands_in
from tests.runs.test_report import (
    FAST_DEVICES,
    SCENARIOS,
    change_update,
    delay,
    leave,
    report_of,
    run_virtually,
    trace,
)

__all__ = ["trace"]
LONG_NAME = "Q" * 58


def render(view: RenderableType, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def progress_until(steps: list[Step], command: type, more: int = 0) -> RunProgress:
    """Return the progress up to the first command of that type, and `more` steps later."""
    first = next(k for k, step in enumerate(steps) if commands_in([step], command))
    progress = RunProgress()
    for step in steps[: first + 1 + more]:
        progress.apply(step)
    return progress


def row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(name)).split()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_step_of_every_run_is_shown_without_cutting_text(
    trace: list[Step], width: int
) -> None:
    progress = RunProgress()
    for step in trace:
        progress.apply(step)
        text = render(run_view(progress, progress.now_s), width)
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert all(name in text for name in progress.names)
        assert max(map(len, text.splitlines())) <= width
    text = render(run_summary_view(progress.report()), width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert " ".join(progress.report().deadline_summary.split()) in " ".join(text.split())
    assert all(name in text for name in progress.names if progress.report().cycles)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_long_names_are_wrapped_and_not_cut(width: int) -> None:
    progress = progress_until(run_virtually(), commands.Dispatch)
    progress.names[1] = LONG_NAME
    assert render(run_view(progress, 1.0), width).count("Q") == len(LONG_NAME)
    report = replace(report_of("equal"), names=("a", LONG_NAME, "c"))
    assert LONG_NAME in render(run_summary_view(report), width)


def test_the_time_in_the_cycle_and_late_learners_are_shown() -> None:
    progress = progress_until(
        run_virtually(change=change_update(1, 1, delay(20))), commands.Dispatch, more=2
    )
    text = render(run_view(progress, 10.6))
    assert text.startswith(
        "digits: equal, cycle 1 of 3\n10.5 of 10 s (105%), and 1 s for late updates "
    )
    assert row(text, "device-0") == ["device-0", "handed", "in", "7", "100%"]
    assert row(text, "device-1") == ["device-1", "late", "7", "0%", "0.5", "s"]
    assert row(render(run_view(progress, 5.0)), "device-1")[1] == "training"


def test_an_update_in_the_tail_is_counted_and_its_delay_shown() -> None:
    progress = progress_until(SCENARIOS["tail"](), commands.Aggregate)
    text = render(run_view(progress, progress.now_s))
    assert row(text, "device-2") == ["device-2", "handed", "in", "6", "100%", "0.5", "s"]
    assert "averaging and evaluating" in text


def test_progress_and_predictions_are_shown_if_the_scheme_knows_them() -> None:
    progress = progress_until(SCENARIOS["staleness"](), commands.Dispatch)
    assert progress.current_cycle is not None
    work = progress.current_cycle.assignments[1]
    half = np.array([work.planned_visits // 2])
    event = events.ProgressReported(
        at_s=progress.now_s + 1, learners=np.array([1]), cycle=1, visits=half
    )
    progress.apply(Step(event, []))
    text = render(run_view(progress, progress.now_s))
    expected = f"{work.predicted_s:.1f}"
    assert row(text, "device-1")[1:] == ["training", str(work.shards), "50%", expected, "s"]


def test_with_dab_progress_is_private_until_the_update_is_received() -> None:
    steps = SCENARIOS["dab"]()
    measuring = render(run_view(progress_until(steps, commands.AskBound), 0.1))
    assert row(measuring, "device-0") == ["device-0", "measuring"]
    assert "measuring: device-0, device-1, device-2" in measuring
    progress = progress_until(steps, commands.Dispatch)
    # Progress is not shown even if a learner reports it.
    event = events.ProgressReported(at_s=1, learners=np.array([0]), cycle=1, visits=np.array([100]))
    progress.apply(Step(event, []))
    assert row(render(run_view(progress, 1.0)), "device-0")[1:] == ["training", "13"]
    fetching = render(run_view(progress, 1.0, [0]))
    assert row(fetching, "device-0")[1:] == ["fetching", "13"]
    assert row(fetching, "device-1")[1] == "training"
    assert "expected" not in fetching
    first = progress_until(steps, commands.Aggregate)
    handed_in = render(run_view(first, first.now_s, [0]))
    assert row(handed_in, "device-0")[1:3] == ["handed", "in"]
    assert row(handed_in, "device-0")[4] == "100%"


def test_between_two_cycles_of_dab_assignments_of_the_first_are_not_shown() -> None:
    steps = SCENARIOS["dab"]()
    second = [k for k, step in enumerate(steps) if commands_in([step], commands.AskBound)][1]
    progress = RunProgress()
    for step in steps[: second + 2]:
        progress.apply(step)
    text = render(run_view(progress, progress.now_s))
    assert "cycle 2 of 3  accuracy 60.0%, loss 1.667" in text
    assert row(text, "device-0") == ["device-0", "waiting"]
    assert row(text, "device-1")[1] == "measuring"


def test_a_learner_that_left_is_shown_as_left_and_waits_after_it_rejoins() -> None:
    steps = run_virtually(change=change_update(2, 1, leave))
    progress = RunProgress()
    for step in steps:
        progress.apply(step)
        if progress.left:
            break
    assert row(render(run_view(progress, progress.now_s)), "device-2")[1] == "left"
    joined = events.LearnersJoined(
        at_s=progress.now_s, learners=np.array([2]), names=("device-2",), discloses=("costs",)
    )
    progress.apply(Step(joined, []))
    assert row(render(run_view(progress, progress.now_s)), "device-2")[1] == "waiting"


def test_many_learners_are_folded_into_groups_and_outliers_are_listed() -> None:
    devices = [FakeDevice(0.01 * (k % 7 + 1)) for k in range(60)]
    progress = progress_until(
        run_virtually(devices, change=change_update(33, 1, delay(30)), min_shards=0),
        commands.Dispatch,
    )
    progress.names[:] = [f"{'phone' if k % 3 else 'pi'}-{k:02}" for k in range(60)]
    before = render(run_view(progress, 5.0, [0, 3, 4])).splitlines()
    assert len(before) == 5
    assert before[3].split()[:6] == ["phone", "(40)", "12", "training,", "1", "fetching,"]
    assert before[4].split()[:6] == ["pi", "(20)", "5", "training,", "2", "fetching,"]
    late = render(run_view(progress, 20.0)).splitlines()
    assert len(late) == 5 + MAX_OUTLIERS
    assert all(line.split()[1] == "late" for line in late[5:])


def test_of_many_learners_without_problems_the_slowest_is_listed() -> None:
    devices = [FakeDevice(0.01 * (k % 7 + 1)) for k in range(60)]
    steps = run_virtually(devices, scheme="proportional", min_shards=0)
    slow = progress_until(steps, commands.Dispatch)
    lines = render(run_view(slow, slow.now_s)).splitlines()
    assert lines[3].startswith("device (60)")
    work = slow.current_cycle.assignments if slow.current_cycle else None
    assert work is not None
    assert len(lines) == 5
    assert lines[4].split()[4] == f"{np.nanmax(work.predicted_s):.1f}"


def test_learners_that_have_not_joined_are_joining() -> None:
    progress = RunProgress()
    progress.apply(run_virtually()[0])
    progress.names[:] = ["device-0", "device-1", "device-2"]
    assert row(render(run_view(progress, 0.0)), "device-0") == ["device-0", "joining"]


@pytest.mark.parametrize(
    ("name", "cycle", "line"),
    [
        (
            # 600 visits; 50, 33 and 25 a second in 9.8 s would have been 1062.
            "equal",
            1,
            (
                "cycle 1: 8.0 of 10 s; 3 of 3 updates; accuracy 60.0%, loss 1.667; "
                "capacity used 57%, lost: closed early 20%, waiting for others 16%, fetching 7%"
            ),
        ),
        (
            "late",
            2,
            (
                "cycle 2: 1 s past its deadline of 10 s; 2 of 3 updates, device-1 late; "
                "accuracy 70.0%, loss 1.429; capacity used 37%, lost: waiting for others 32%, "
                "late 31%"
            ),
        ),
        (
            "refused",
            2,
            (
                "cycle 2: 7.4 of 10 s; 2 of 3 updates, device-1 refused; accuracy 70.0%, "
                "loss 1.429; capacity used 37%, lost: refused 31%, closed early 18%, waiting for "
                "others 14%"
            ),
        ),
        ("one empty", 2, "cycle 2: empty: no update was received"),
        ("cancelled", 2, "cycle 2: interrupted: Ctrl-C"),
    ],
)
def test_a_cycle_is_one_line(name: str, cycle: int, line: str) -> None:
    assert cycle_line(report_of(name).cycles[cycle - 1]) == line


def test_a_cycle_in_progress_is_running_and_many_missing_updates_are_counted() -> None:
    cycle = progress_until(run_virtually(), commands.Dispatch).current_cycle
    assert cycle is not None
    assert cycle_line(cycle) == "cycle 1: running"
    whole = report_of("late").cycles[1]
    one, late, _ = whole.assignments
    others = [replace(late, learner=k, name=f"device-{k}") for k in range(1, 9)]
    many = replace(whole, assignments=Assignments.from_records([one, *others]))
    names = "device-1, device-2, device-3, device-4 and device-5"
    assert f"; 1 of 9 updates, {names} late, 3 more missing;" in cycle_line(many)
    carrying = replace(many, carries_late=True)
    assert f"; 1 of 9 updates, {names} late so far, 3 more missing;" in cycle_line(carrying)
    assert f"capacity used {whole.capacity_used:.0%} so far, lost: " in cycle_line(
        replace(whole, carries_late=True)
    )


def test_a_line_names_learners_without_an_assignment() -> None:
    whole = report_of("late").cycles[1]
    one, *_ = whole.assignments
    idle = Unassigned(
        ("a", "pi", "nano", "phone"),
        np.arange(1, 4, dtype=np.int32),
        np.arange(3, dtype=np.int8),
    )
    cycle = replace(whole, assignments=Assignments.from_records([one]), unassigned=idle)
    causes = "pi not ready, nano without work, phone absent"
    assert f"; 1 of 4 updates, {causes}; " in cycle_line(cycle)
    lost, again = replace(one, attempt=1, status="dropped"), replace(one, attempt=2)
    restarted = replace(cycle, assignments=Assignments.from_records([lost, again]))
    assert f"; 1 of 4 updates, {causes}; " in cycle_line(restarted)


def test_the_summary_counts_carried_updates_and_cycles_without_work() -> None:
    report = report_of("late")
    totals = report.learners
    changed = replace(
        totals,
        carried=np.array([0, 2, 1]),
        not_ready=np.array([1, 0, 0]),
        absent=np.array([2, 0, 1]),
    )
    report.__dict__["learners"] = changed
    text = render(run_summary_view(report), 200)
    assert "3 late updates joined later averages\n" in text
    first = "device-0 in 3 cycles (1 not ready, 2 absent)"
    assert f"not included: {first}, device-2 in 1 cycle (absent)\n" in text
    assert row(text, "device-0")[-4:] == ["1", "not", "ready,", "2", "absent"][-4:]


def test_a_nan_loss_is_shown_and_a_missing_accuracy_is_not() -> None:
    assert format_score(0.1, nan) == "accuracy 10.0%, loss nan"
    assert format_score(nan, 0.25) == "loss 0.25"
    assert format_score(nan, nan) == "not evaluated"


def test_the_summary_has_deadline_learners_accuracy_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/1")
    folder.mkdir(parents=True)
    (folder / "picture.svg").touch()
    report = replace(report_of("late"), model=folder / "model.npz", folder=folder)
    lines = render(run_summary_view(report)).splitlines()
    assert (
        lines[0]
        == "the deadline of 10 s held in 2 of 3 cycles; the longest took 11 s, 1 s too long"
    )
    figures = [str(report.learners[1].shards), str(report.learners[1].counted_visits), "67%"]
    capacity = f"{report.learners[1].capacity_used:.0%}"
    assert row("\n".join(lines), "device-1")[1:5] == [*figures, capacity]
    assert f"{report.outside_share:.0%} outside cycles; average truancy" in "\n".join(lines)
    capacity_line = format_capacity(report.capacity_used, report.capacity_lost)
    assert capacity_line in render(run_summary_view(report), 120).splitlines()
    assert row("\n".join(lines), "device-1")[-2:] == ["1", "late"]
    assert "accuracy 80.0%, loss 1.25 after 3 cycles" in lines
    assert lines[-3:] == [
        "model    runs/1/model.npz",
        "picture  runs/1/picture.svg",
        "trace    runs/1/trace.jsonl",
    ]
    (folder / "picture.svg").unlink()
    assert "picture" not in render(run_summary_view(report))


@pytest.mark.parametrize("name", ["no plan", "cancelled", "empty", "all left", "stopped"])
def test_the_summary_of_a_run_that_ended_early_has_outcome_and_reason(name: str) -> None:
    report = report_of(name)
    lines = render(run_summary_view(report), 200).splitlines()
    assert lines[0] == report.deadline_summary
    assert lines[1] == f"{report.outcome}: {report.reason}"
    assert ("nothing was trained" in lines) == (not report.cycles)


def test_the_summary_has_identities_that_were_in_use_twice() -> None:
    report = replace(report_of("equal"), shared_identities=("pi: in use\x1b twice",))
    assert "copied identity: pi: in use\\x1b twice" in render(run_summary_view(report))


def test_learners_that_are_not_listed_are_summed() -> None:
    text = render(run_summary_view(report_of("late"), show=1))
    rest = report_of("late").learners[1:]
    trained = sum(learner.counted_visits for learner in rest)
    assert f"and 2 more (--show): {trained} visits counted, 1 update missing" in text


def test_views_can_be_written_to_an_ascii_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = progress_until(run_virtually(FAST_DEVICES), commands.Dispatch)
    progress.names[0] = "k\N{LATIN SMALL LETTER U WITH DIAERESIS}che"
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding="ascii"))
    output.write(run_view(progress, 1.0))
    output.write(run_summary_view(Report.from_trace(run_virtually())))
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[1].startswith("0.9 of 10 s (9%), and 1 s for late updates ==")
    assert any(line.startswith("k\\xfcche") for line in lines)
    assert any(line.startswith("device-0") for line in lines)


def test_the_line_names_all_losses_that_show() -> None:
    lost = dict.fromkeys(LOSSES, 0.0) | {"fetching": 0.031, "halted early": 0.05, "gone": 4e-3}
    text = "capacity used 92%"
    assert format_capacity(0.92, lost) == f"{text}, lost: halted early 5%, fetching 3%"
    so_far = format_capacity(0.92, lost, so_far=True)
    assert so_far == f"{text} so far, lost: halted early 5%, fetching 3%"
    assert format_capacity(1.0, dict.fromkeys(LOSSES, 0.0)) == "capacity used 100%"
    assert format_capacity(nan, lost) == ""


def test_learners_that_measure_during_a_cycle_do_not_hide_its_time() -> None:
    trace = run_virtually()
    progress = progress_until(trace, commands.Dispatch)
    benchmark = commands.Benchmark(reason="late", learners=np.array([2]), seconds=1.0)
    progress.apply(Step(events.TimeReached(at_s=1.0), [benchmark]))
    text = render(run_view(progress, 1.1))
    assert "1.0 of 10 s (10%), and 1 s for late updates" in text

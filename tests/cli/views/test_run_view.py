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
from melisma.cli.views.run_view import MAX_LEARNERS, cycle_line, format_score, run_view
from melisma.cycle import commands, events
from melisma.runs.assignments import Assignments
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
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
LONG = "Q" * 58


def drawn(found: RenderableType, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(found)
    return captured.get()


def told(steps: list[Step], until: type, more: int = 0) -> RunProgress:
    """The story up to the first such command, and so many steps more."""
    first = next(k for k, step in enumerate(steps) if commands_in([step], until))
    story = RunProgress()
    for step in steps[: first + 1 + more]:
        story.apply(step)
    return story


def row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(name)).split()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_step_of_every_run_can_be_shown_and_nothing_is_cut(
    trace: list[Step], width: int
) -> None:
    story = RunProgress()
    for step in trace:
        story.apply(step)
        text = drawn(run_view(story, story.now_s), width)
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert all(name in text for name in story.names)
        assert max(map(len, text.splitlines())) <= width
    text = drawn(run_summary_view(story.report()), width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert " ".join(story.report().deadline_summary.split()) in " ".join(text.split())
    assert all(name in text for name in story.names if story.report().cycles)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_long_names_run_over_and_are_whole(width: int) -> None:
    story = told(run_virtually(), commands.Dispatch)
    story.names[1] = LONG
    assert drawn(run_view(story, 1.0), width).count("Q") == len(LONG)
    found = replace(report_of("equal"), names=("a", LONG, "c"))
    assert LONG in drawn(run_summary_view(found), width)


def test_the_time_in_the_cycle_and_who_is_late_are_shown() -> None:
    story = told(run_virtually(change=change_update(1, 1, delay(20))), commands.Dispatch, more=2)
    text = drawn(run_view(story, 10.6))
    assert text.startswith("digits: equal, cycle 1 of 3\n10.5 of 10 s, and 1 s for late updates ")
    assert row(text, "device-0") == ["device-0", "counted", "7", "100%", "-", "-"]
    assert row(text, "device-1") == ["device-1", "late", "7", "0%", "-", "0.5", "s"]
    assert row(drawn(run_view(story, 5.0)), "device-1")[1] == "training"


def test_an_update_in_the_tail_is_in_and_late() -> None:
    story = told(SCENARIOS["tail"](), commands.Aggregate)
    text = drawn(run_view(story, story.now_s))
    assert row(text, "device-2") == ["device-2", "counted", "6", "100%", "-", "0.5", "s"]
    assert "averaging and evaluating" in text


def test_progress_and_predictions_are_shown_where_the_scheme_knows_them() -> None:
    story = told(SCENARIOS["staleness"](), commands.Dispatch)
    assert story.current_cycle is not None
    work = story.current_cycle.assignments[1]
    half = np.array([work.planned_visits // 2])
    progress = events.ProgressReported(
        at_s=story.now_s + 1, learners=np.array([1]), cycle=1, visits=half
    )
    story.apply(Step(progress, []))
    text = drawn(run_view(story, story.now_s))
    expected = f"{work.predicted_s:.1f}"
    assert row(text, "device-1")[1:] == ["training", str(work.shards), "50%", expected, "s", "-"]


def test_with_dab_progress_is_private_until_the_update_is_in() -> None:
    steps = SCENARIOS["dab"]()
    asked = drawn(run_view(told(steps, commands.AskBound), 0.1))
    assert row(asked, "device-0") == ["device-0", "measuring", "-", "-", "-", "-"]
    assert "measuring: device-0, device-1, device-2" in asked
    story = told(steps, commands.Dispatch)
    # Even if something were let out.
    heard = events.ProgressReported(at_s=1, learners=np.array([0]), cycle=1, visits=np.array([100]))
    story.apply(Step(heard, []))
    assert row(drawn(run_view(story, 1.0)), "device-0")[3:] == ["private", "-", "-"]
    first = told(steps, commands.Aggregate)
    assert row(drawn(run_view(first, first.now_s)), "device-0")[3] == "100%"


def test_between_two_cycles_of_dab_old_work_is_not_shown() -> None:
    steps = SCENARIOS["dab"]()
    second = [k for k, step in enumerate(steps) if commands_in([step], commands.AskBound)][1]
    story = RunProgress()
    for step in steps[: second + 2]:
        story.apply(step)
    text = drawn(run_view(story, story.now_s))
    assert "cycle 2 of 3  accuracy 60.0%, loss 1.667" in text
    assert row(text, "device-0") == ["device-0", "waiting", "-", "-", "-", "-"]
    assert row(text, "device-1")[1] == "measuring"


def test_who_left_is_gone_and_who_comes_back_waits() -> None:
    steps = run_virtually(change=change_update(2, 1, leave))
    story = RunProgress()
    for step in steps:
        story.apply(step)
        if story.left:
            break
    assert row(drawn(run_view(story, story.now_s)), "device-2")[1] == "gone"
    again = events.LearnersJoined(
        at_s=story.now_s, learners=np.array([2]), names=("device-2",), discloses=("costs",)
    )
    story.apply(Step(again, []))
    assert row(drawn(run_view(story, story.now_s)), "device-2")[1] == "waiting"


def test_of_many_learners_the_late_and_the_slow_come_first() -> None:
    devices = [FakeDevice(0.01 * (k % 7 + 1)) for k in range(60)]
    story = told(
        run_virtually(devices, change=change_update(33, 1, delay(30)), min_shards=0),
        commands.Dispatch,
    )
    lines = drawn(run_view(story, 20.0)).splitlines()
    assert len(lines) == MAX_LEARNERS + 4
    assert lines[-1].startswith(f"{MAX_LEARNERS} of 60 learners; total: ")
    slow = told(run_virtually(devices, scheme="proportional", min_shards=0), commands.Dispatch)
    shown = [
        float(line.split()[4])
        for line in drawn(run_view(slow, slow.now_s)).splitlines()
        if line.startswith("device-")
    ]
    assert shown == sorted(shown, reverse=True)


@pytest.mark.parametrize(
    ("name", "cycle", "line"),
    [
        ("equal", 1, "cycle 1: 8.0 of 10 s; 3 of 3 updates; accuracy 60.0%, loss 1.667"),
        (
            "late",
            2,
            (
                "cycle 2: 1 s past its deadline of 10 s; 2 of 3 updates, device-1 late; "
                "accuracy 70.0%, loss 1.429"
            ),
        ),
        (
            "refused",
            2,
            "cycle 2: 7.4 of 10 s; 2 of 3 updates, device-1 refused; accuracy 70.0%, loss 1.429",
        ),
        ("one empty", 2, "cycle 2: empty: no update was received"),
        ("cancelled", 2, "cycle 2: interrupted: Ctrl-C"),
    ],
)
def test_a_cycle_is_one_line(name: str, cycle: int, line: str) -> None:
    assert cycle_line(report_of(name).cycles[cycle - 1]) == line


def test_a_cycle_under_way_says_so_and_many_absent_ones_are_counted() -> None:
    cycle = told(run_virtually(), commands.Dispatch).current_cycle
    assert cycle is not None
    assert cycle_line(cycle) == "cycle 1: running"
    whole = report_of("late").cycles[1]
    one, late, _ = whole.assignments
    many = replace(whole, assignments=Assignments.from_records([one, *[late] * 8]))
    assert "; 1 of 9 updates, device-1 late, device-1 late, " in cycle_line(many)
    assert ", 3 more missing;" in cycle_line(many)


def test_a_loss_that_is_no_number_is_told_and_an_accuracy_that_is_not_there_is_not() -> None:
    assert format_score(0.1, nan) == "accuracy 10.0%, loss nan"
    assert format_score(nan, 0.25) == "loss 0.25"
    assert format_score(nan, nan) == "not evaluated"


def test_the_last_screen_says_whether_the_deadline_held_who_did_what_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/1")
    folder.mkdir(parents=True)
    (folder / "picture.svg").touch()
    found = replace(report_of("late"), model=folder / "model.npz", folder=folder)
    lines = drawn(run_summary_view(found)).splitlines()
    assert (
        lines[0]
        == "the deadline of 10 s held in 2 of 3 cycles; the longest took 11 s, 1 s too long"
    )
    did = [str(found.learners[1].shards), str(found.learners[1].counted_visits), "67%"]
    assert row("\n".join(lines), "device-1")[1:4] == did
    assert row("\n".join(lines), "device-1")[-2:] == ["1", "late"]
    assert "accuracy 80.0%, loss 1.25 after 3 cycles" in lines
    assert lines[-3:] == [
        "model    runs/1/model.npz",
        "picture  runs/1/picture.svg",
        "trace    runs/1/trace.jsonl",
    ]
    (folder / "picture.svg").unlink()
    assert "picture" not in drawn(run_summary_view(found))


@pytest.mark.parametrize("name", ["no plan", "cancelled", "empty", "all left", "stopped"])
def test_the_last_screen_says_how_a_run_ended_that_did_not_go_to_its_last_cycle(name: str) -> None:
    found = report_of(name)
    lines = drawn(run_summary_view(found), 200).splitlines()
    assert lines[0] == found.deadline_summary
    assert lines[1] == f"{found.outcome}: {found.reason}"
    assert ("nothing was trained" in lines) == (not found.cycles)


def test_learners_that_are_not_listed_are_summed_up() -> None:
    text = drawn(run_summary_view(report_of("late"), show=1))
    rest = report_of("late").learners[1:]
    trained = sum(each.counted_visits for each in rest)
    assert f"and 2 more: {trained} samples trained, 1 updates missing" in text


def test_screens_can_be_written_where_only_ascii_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    story = told(run_virtually(FAST_DEVICES), commands.Dispatch)
    story.names[0] = "k\N{LATIN SMALL LETTER U WITH DIAERESIS}che"
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding="ascii"))
    output.write(run_view(story, 1.0))
    output.write(run_summary_view(Report.of(run_virtually())))
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[1].startswith("0.9 of 10 s, and 1 s for late updates ==")
    assert any(line.startswith("k\\xfcche") for line in lines)
    assert any(line.startswith("device-0") for line in lines)

import re
from dataclasses import replace
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.runs.assignments import Assignments
from melisma.runs.capacity import LOSSES
from melisma.runs.report import Report
from melisma.runs.run_picture import (
    CAPACITY_WIDTH,
    COLORS,
    IDLE_HEIGHT,
    IDLE_LABEL,
    LABEL_GAP,
    LEFT,
    MAX_CYCLES,
    MAX_LEARNERS,
)
from melisma.runs.svg import BAND, GREY, LETTER_WIDTH, Scale, round_up, space_out
from melisma.runs.trace import Step
from melisma.testing import FakeDevice
from tests.runs.test_capacity import TraceByHand, late_update
from tests.runs.test_report import SCENARIOS, report_of, run_virtually, trace

__all__ = ["trace"]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ('<pi> & "nano"', "raspberry-pi-4-in-the-kitchen", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 30)


def elements(report: Report, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(report.plot().svg).iter(f"{SVG}{tag}"))


def texts(report: Report) -> list[str]:
    return [
        element.text or "" for tag in ("text", "title") for element in elements(report, tag)
    ] + [element.tail or "" for element in elements(report, "title")]


def test_the_picture_of_any_run_stays_within_its_bounds(trace: list[Step]) -> None:
    for count in range(1, len(trace) + 1, 3):
        root = ET.fromstring(Report.from_trace(trace[:count]).plot().svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter(f"{SVG}rect"):
            corner = {name: float(element.attrib.get(name, 0)) for name in ("x", "y")}
            assert 0 <= corner["x"] <= corner["x"] + float(element.attrib["width"]) <= width + 0.1
            assert 0 <= corner["y"] <= corner["y"] + float(element.attrib["height"]) <= height + 0.1
        for element in root.iter(f"{SVG}text"):
            assert 0 <= float(element.attrib["x"]) <= width
            assert 0 < float(element.attrib["y"]) < height


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_coordinate_is_nan_or_infinite(name: str) -> None:
    assert not re.search(r'"-?(nan|inf)', report_of(name).plot().svg)


def test_names_are_escaped_and_complete() -> None:
    report = replace(report_of("equal"), names=NAMES)
    assert set(NAMES) <= set(texts(report))
    assert "<pi>" not in report.plot().svg


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    report = replace(report_of("equal"), names=("a\x00b", "c\nd", ""))
    assert {"a\N{REPLACEMENT CHARACTER}b", "c\N{REPLACEMENT CHARACTER}d"} <= set(texts(report))


def test_bars_are_as_wide_as_phases_are_long() -> None:
    report = report_of("equal")
    bars = [e for e in elements(report, "rect") if e.attrib["fill"] == COLORS["train"]][1:]
    work = [assignment for cycle in report.cycles for assignment in cycle.assignments]
    widths = [float(element.attrib["width"]) for element in bars]
    pixels_per_s = widths[0] / work[0].phases[4]
    assert widths == pytest.approx(
        [assignment.phases[4] * pixels_per_s for assignment in work], abs=0.02
    )


def test_phases_longer_than_the_assignment_are_compressed() -> None:
    report = report_of("equal")
    first = report.cycles[0]
    longer = replace(first.assignments[0], phases=(0.0, 9.0, 9.0, 0.0, 9.0, 0.0))
    widths = []
    for assignment in (longer, first.assignments[0]):
        single = replace(
            report, cycles=(replace(first, assignments=Assignments.from_records([assignment])),)
        )
        bars = [e for e in elements(single, "rect") if e.attrib["fill"] in COLORS.values()]
        widths.append(sum(float(e.attrib["width"]) for e in bars))
    assert widths[0] == pytest.approx(widths[1], abs=0.05)


@pytest.mark.parametrize(
    ("name", "count"),
    [("equal", 0), ("late", 1), ("refused", 1), ("left", 1), ("cancelled", 3), ("empty", 3)],
)
def test_work_that_does_not_count_is_hatched(name: str, count: int) -> None:
    hatched = [e for e in elements(report_of(name), "rect") if e.attrib["fill"] == "url(#dropped)"]
    assert len(hatched) == count + 1  # and one in the legend


def deadlines(report: Report) -> list[float]:
    dashed = [e for e in elements(report, "line") if "stroke-dasharray" in e.attrib]
    return [float(e.attrib["x1"]) for e in dashed[1:]]  # the first is in the legend


@pytest.mark.parametrize("name", [name for name in SCENARIOS if report_of(name).cycles])
def test_every_cycle_has_a_panel_with_its_deadline_at_the_same_distance(name: str) -> None:
    report = report_of(name)
    deadlines_x = deadlines(report)
    assert len(deadlines_x) == len(report.cycles)
    starts = [float(e.attrib["x"]) for e in elements(report, "rect") if e.attrib["fill"] == BAND]
    assert starts == sorted(starts)
    assert [end - start for end, start in zip(deadlines_x, starts, strict=True)] == pytest.approx(
        [deadlines_x[0] - starts[0]] * len(deadlines_x), abs=0.02
    )


def test_a_bar_that_ends_past_the_deadline_is_drawn_past_it() -> None:
    report = report_of("tail")
    bars = [e for e in elements(report, "rect") if e.attrib["fill"] == COLORS["upload"]][1:]
    ends = [float(e.attrib["x"]) + float(e.attrib["width"]) for e in bars]
    late = report.cycles[0].assignments[2]
    assert late.arrived_s > report.cycles[0].began_s + report.cycles[0].deadline_s
    assert ends[2] > deadlines(report)[0] > ends[1]


def test_the_head_of_a_panel_has_its_number_seconds_and_accuracy() -> None:
    report = report_of("late")
    labels = texts(report)
    for cycle in report.cycles:
        expected = {
            f"cycle {cycle.number}",
            f"{cycle.cycle_s:.4g} s",
            f"{cycle.accuracy:.1%}",
        }
        assert expected <= set(labels)


@pytest.mark.parametrize(("cycles", "devices"), [(1, 2), (2, 4), (6, 4), (12, 46), (30, 2)])
def test_labels_of_neighbouring_panels_do_not_touch(cycles: int, devices: int) -> None:
    report = Report.from_trace(
        run_virtually([FakeDevice(0.2)] * devices, passes=1, cycles=cycles, min_shards=0)
    )
    lines: dict[str, list[tuple[float, str]]] = {}
    for element in elements(report, "text"):
        title = element.find(f"{SVG}title")
        label = (title.tail if title is not None else element.text) or ""
        if float(element.attrib["x"]) >= LEFT and "font-weight" not in element.attrib:
            lines.setdefault(element.attrib["y"], []).append((float(element.attrib["x"]), label))
    for line in lines.values():
        for (x, label), (next_x, _) in pairwise(sorted(line)):
            assert next_x - x >= 5.5 * len(label), (label, line)


def test_only_the_last_cycles_and_the_first_learners_of_many_are_drawn() -> None:
    learners = MAX_LEARNERS + 5
    report = Report.from_trace(
        run_virtually([FakeDevice(0.2)] * learners, passes=1, cycles=MAX_CYCLES + 3, min_shards=0)
    )
    labels = texts(report)
    assert f"the last {MAX_CYCLES} of {MAX_CYCLES + 3} cycles are drawn above" in labels
    assert f"the first {MAX_LEARNERS} of {learners} learners are drawn" in labels
    assert "device-39" in labels
    assert "device-40" not in labels
    assert {"cycle 4", f"cycle {MAX_CYCLES + 3}"} <= set(labels)
    assert "cycle 3" not in labels
    assert len(elements(report, "circle")) == 2 * (MAX_CYCLES + 3)


def with_scores(accuracies: list[float], losses: list[float]) -> Report:
    """Return a report with these scores, one cycle for each."""
    report = report_of("equal")
    pairs = zip(accuracies, losses, strict=True)
    cycles = (
        replace(report.cycles[0], number=number, accuracy=accuracy, loss=loss)
        for number, (accuracy, loss) in enumerate(pairs, 1)
    )
    return replace(report, cycles=tuple(cycles))


def end_labels(report: Report) -> list[ET.Element]:
    """Return the labels of the last accuracy and loss, beside their curves."""
    bold = [e for e in elements(report, "text") if "font-weight" in e.attrib]
    return [e for e in bold if e.attrib["fill"] in (COLORS["train"], COLORS["fetch shards"])]


ACCURACY = st.floats(0, 1) | st.just(nan)


@given(st.lists(st.tuples(ACCURACY, st.floats() | st.floats(0, 10)), min_size=1, max_size=20))
@example([(0.5, 0.5), (0.9, 0.09)])
@example([(nan, 1.7e308), (nan, -1.7e308)])
def test_scores_of_any_size_are_drawn_within_the_picture_and_labels_do_not_overlap(
    scores: list[tuple[float, float]],
) -> None:
    report = with_scores([a for a, _ in scores], [loss for _, loss in scores])
    assert not re.search(r'"-?(nan|inf)', report.plot().svg)
    assert report.plot().svg == report.plot().svg
    root = ET.fromstring(report.plot().svg)
    height = float(root.attrib["height"])
    for element in root.iter(f"{SVG}circle"):
        assert 0 <= float(element.attrib["cy"]) <= height
    positions = sorted(float(element.attrib["y"]) for element in end_labels(report))
    assert len(positions) == any(0 <= a <= 1 for a, _ in scores) + any(
        isfinite(b) for _, b in scores
    )
    assert all(after - before >= LABEL_GAP - 0.11 for before, after in pairwise(positions))
    assert all(0 < position < height for position in positions)


def axis(report: Report, name: str) -> dict[str, float]:
    """Return the labels of an axis with their y coordinates."""
    drawn = [e for e in elements(report, "text") if "font-weight" not in e.attrib]
    (x,) = {e.attrib["x"] for e in drawn if e.text == name}
    color = COLORS["train"] if name == "accuracy" else COLORS["fetch shards"]
    labels = [e for e in drawn if (e.attrib["x"], e.attrib["fill"]) == (x, color)]
    return {e.text or "": float(e.attrib["y"]) for e in labels}


@pytest.mark.parametrize(
    ("losses", "low", "high"),
    [([2.3, 1.1, 0.6], "0", "2.5"), ([0.0, 0.0], "0", "1e-09"), ([0.04, -0.62], "-0.7", "0.04")],
)
@pytest.mark.parametrize("accuracy", [0.5, nan])
def test_loss_has_an_axis_of_its_own_at_the_right(
    losses: list[float], low: str, high: str, accuracy: float
) -> None:
    report = with_scores([accuracy] * len(losses), losses)
    labels = axis(report, "loss")
    assert list(labels) == [low, high, "loss"]
    assert labels[high] < labels["loss"] < labels[low]
    lines = [e for e in elements(report, "line") if e.attrib["x1"] == e.attrib["x2"]]
    (x,) = {float(e.attrib["x"]) for e in elements(report, "text") if e.text == "loss"}
    assert x > LEFT
    assert any(0 < x - float(e.attrib["x1"]) < 10 for e in lines)
    curve = [float(e.attrib["cy"]) for e in elements(report, "circle")]
    assert all(labels[high] - 5 <= y <= labels[low] for y in curve)


def test_accuracy_has_its_axis_at_the_left() -> None:
    labels = axis(with_scores([0.12, 0.78], [2.0, 1.0]), "accuracy")
    assert list(labels) == ["10%", "80%", "accuracy"]


def test_the_last_value_does_not_overlap_the_axis_of_the_loss() -> None:
    for cycles in (1, 3, 7, 12, 13, 60):
        report = with_scores([0.5] * cycles, [0.123] * cycles)
        (x,) = {float(e.attrib["x"]) for e in elements(report, "text") if e.text == "loss"}
        for element in end_labels(report):
            start = float(element.attrib["x"])
            assert start + LETTER_WIDTH * len(
                element.text or ""
            ) < x or start > x + LETTER_WIDTH * len("loss")


def test_end_labels_do_not_overlap_wherever_the_curves_end() -> None:
    for last in np.linspace(0, 1, 51).tolist():
        (first, second) = end_labels(with_scores([0.0, last], [1.0, last]))
        assert abs(float(first.attrib["y"]) - float(second.attrib["y"])) >= LABEL_GAP - 0.11


@given(st.lists(st.floats(-50, 150), max_size=12))
def test_space_out_keeps_order_gap_and_bounds(positions: list[float]) -> None:
    spaced = space_out(positions, 14, 0, 100)
    assert all(-1e-9 <= position <= 100 + 1e-9 for position in spaced)
    assert sorted(range(len(positions)), key=positions.__getitem__) == sorted(
        range(len(positions)), key=spaced.__getitem__
    )
    gap = min(14, 100 / max(len(positions) - 1, 1))
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(sorted(spaced)))
    if all(after - before >= 14 for before, after in pairwise([-14, *sorted(positions), 114])):
        assert spaced == pytest.approx(positions)


def test_the_reason_of_a_failure_is_written_below() -> None:
    report = report_of("no plan")
    assert report.reason in " ".join(texts(report))


def test_a_picture_is_displayed_by_notebooks_and_saved_atomically(tmp_path: Path) -> None:
    picture = report_of("dab").plot()
    assert picture._repr_svg_() == picture.svg
    with pytest.raises(SettingError, match=r"run.png; expected a name that ends with .svg"):
        picture.save(tmp_path / "run.png")
    assert list(tmp_path.iterdir()) == []
    path = picture.save(tmp_path / "run.svg")
    assert path.read_text(encoding="utf-8") == picture.svg
    assert list(tmp_path.iterdir()) == [path]


@given(st.floats(1e-9, 1.7e308))
def test_round_up_is_never_below_and_never_far_above(value: float) -> None:
    assert value * (1 - 1e-9) <= round_up(value) <= 1.5 * value


def test_ticks_are_round_and_within_the_range() -> None:
    assert Scale(0, 60, 0, 1).ticks(6) == [0, 10, 20, 30, 40, 50, 60]
    assert Scale(792, 912, 0, 1).ticks(6) == [800, 820, 840, 860, 880, 900]
    assert Scale(5, 5, 0, 1)(5) == 0


def test_a_bar_beside_each_row_is_as_wide_as_the_capacity_that_its_learner_used() -> None:
    report = report_of("late")
    bars = [e for e in elements(report, "rect") if e.attrib["fill"] == GREY]
    bars = [e for e in bars if e.attrib["height"] != f"{IDLE_HEIGHT:.2f}"]
    widths = [float(element.attrib["width"]) for element in bars]
    used = [total.capacity_used for total in report.learners]
    assert widths == pytest.approx([CAPACITY_WIDTH * share for share in used], abs=0.01)
    assert {"capacity", "used", *(f"{share:.0%}" for share in used)} <= set(texts(report))
    assert f"capacity used {report.capacity_used:.0%}" in " ".join(texts(report))
    lost = report.learners[0].capacity_lost[LOSSES.index("fetching")]
    tooltip = next(text for text in texts(report) if text.startswith("lost: "))
    assert f"fetching {lost:.1%}" in tooltip


def carried_update(arrived_s: float) -> Report:
    """Return two cycles of 10 s; an update of the first arrives in the second and joins it."""
    trace = TraceByHand(2, late="carry")
    trace.dispatch(0.0, {0: [0], 1: [1]})
    trace.update(10.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 10.0})
    trace.dispatch(12.0, {0: [0]}, cycle=2)
    trace.update(arrived_s, 1, 10, [0.0, 4.0, 0.0, 0.0, arrived_s - 4.0, 0.0])
    trace.update(arrived_s + 2, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0], cycle=2)
    late = late_update(learner=1, cycle=1, weight=5.0)
    trace.close(arrived_s + 2, {0: 10.0}, cycle=2, late=late)
    return trace.report


def test_the_bar_of_a_carried_update_is_pale_and_ends_where_it_arrived() -> None:
    report = carried_update(arrived_s=16.0)
    (pale,) = [e for e in elements(report, "g") if "opacity" in e.attrib]
    bars = list(pale.iter(f"{SVG}rect"))
    start, end = float(bars[0].attrib["x"]), right_edge(bars[-1])
    first_deadline = deadlines(report)[0]
    assert (end - start) / (first_deadline - start) == pytest.approx(1.6, abs=0.01)
    notes = " ".join(texts(report))
    assert "pale bars are late updates" in notes
    assert "carried, 10 samples, arrived 6 s after the cycle closed" in notes


def test_the_bar_of_an_update_that_is_very_late_is_cut_at_the_edge_of_its_panel() -> None:
    report = carried_update(arrived_s=70.0)
    panels = [e for e in elements(report, "rect") if e.attrib["fill"] == BAND]
    (pale,) = [e for e in elements(report, "g") if "opacity" in e.attrib]
    bars = list(pale.iter(f"{SVG}rect"))
    assert right_edge(bars[-1]) == pytest.approx(right_edge(panels[0]))
    assert all(right_edge(bar) <= right_edge(panels[0]) + 0.01 for bar in bars)
    note = "a bar that reaches the right edge of its cycle ended later"
    assert note in texts(report)
    assert note not in texts(carried_update(arrived_s=16.0))


def right_edge(element: ET.Element) -> float:
    return float(element.attrib["x"]) + float(element.attrib["width"])


def test_a_learner_without_an_assignment_has_a_thin_line_and_a_legend_entry() -> None:
    report = carried_update(arrived_s=16.0)
    assert report.cycles[1].unassigned.by_name() == {"device-1": "absent"}
    lines = [e for e in elements(report, "rect") if e.attrib["height"] == f"{IDLE_HEIGHT:.2f}"]
    assert len(lines) == 2  # one in the legend
    assert IDLE_LABEL in texts(report)
    assert "device-1, cycle 2: absent" in texts(report)
    assert IDLE_LABEL not in texts(report_of("equal"))

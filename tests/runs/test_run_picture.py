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

from melisma.runs.assignments import Assignments
from melisma.runs.report import Report
from melisma.runs.run_picture import COLORS, LABEL_GAP, LEFT, MAX_CYCLES, MAX_LEARNERS
from melisma.runs.svg import BAND, LETTER_WIDTH, Scale, round_up, space_out
from melisma.runs.trace import Step
from melisma.testing import FakeDevice
from tests.runs.test_report import PLAYS, played, report, trace

__all__ = ["trace"]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ('<pi> & "nano"', "raspberry-pi-4-in-the-kitchen", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 30)


def elements(found: Report, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(found.plot().svg).iter(f"{SVG}{tag}"))


def texts(found: Report) -> list[str]:
    return [element.text or "" for tag in ("text", "title") for element in elements(found, tag)] + [
        element.tail or "" for element in elements(found, "title")
    ]


def test_every_run_gives_a_picture_that_stays_within_its_bounds(trace: list[Step]) -> None:
    for count in range(1, len(trace) + 1, 3):
        root = ET.fromstring(Report.of(trace[:count]).plot().svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for each in root.iter(f"{SVG}rect"):
            place = {name: float(each.attrib.get(name, 0)) for name in ("x", "y")}
            assert 0 <= place["x"] <= place["x"] + float(each.attrib["width"]) <= width + 0.1
            assert 0 <= place["y"] <= place["y"] + float(each.attrib["height"]) <= height + 0.1
        for each in root.iter(f"{SVG}text"):
            assert 0 <= float(each.attrib["x"]) <= width
            assert 0 < float(each.attrib["y"]) < height


@pytest.mark.parametrize("name", PLAYS)
def test_nothing_is_drawn_at_what_is_no_number(name: str) -> None:
    assert not re.search(r'"-?(nan|inf)', report(name).plot().svg)


def test_names_are_escaped_and_whole() -> None:
    found = replace(report("equal"), names=NAMES)
    assert set(NAMES) <= set(texts(found))
    assert "<pi>" not in found.plot().svg


def test_letters_that_xml_cannot_hold_are_replaced() -> None:
    found = replace(report("equal"), names=("a\x00b", "c\nd", ""))
    assert {"a\N{REPLACEMENT CHARACTER}b", "c\N{REPLACEMENT CHARACTER}d"} <= set(texts(found))


def test_bars_are_as_wide_as_phases_are_long() -> None:
    found = report("equal")
    bars = [e for e in elements(found, "rect") if e.attrib["fill"] == COLORS["train"]][1:]
    work = [each for cycle in found.cycles for each in cycle.assignments]
    widths = [float(each.attrib["width"]) for each in bars]
    a_second = widths[0] / work[0].phases[4]
    assert widths == pytest.approx([each.phases[4] * a_second for each in work], abs=0.02)


def test_phases_longer_than_the_time_there_was_are_squeezed_into_it() -> None:
    found = report("equal")
    first = found.cycles[0]
    longer = replace(first.assignments[0], phases=(0.0, 9.0, 9.0, 0.0, 9.0, 0.0))
    widths = []
    for each in (longer, first.assignments[0]):
        alone = replace(
            found, cycles=(replace(first, assignments=Assignments.from_records([each])),)
        )
        bars = [e for e in elements(alone, "rect") if e.attrib["fill"] in COLORS.values()]
        widths.append(sum(float(e.attrib["width"]) for e in bars))
    assert widths[0] == pytest.approx(widths[1], abs=0.05)


@pytest.mark.parametrize(
    ("name", "count"),
    [("equal", 0), ("late", 1), ("refused", 1), ("left", 1), ("cancelled", 3), ("empty", 3)],
)
def test_work_that_does_not_count_is_hatched(name: str, count: int) -> None:
    hatched = [e for e in elements(report(name), "rect") if e.attrib["fill"] == "url(#dropped)"]
    assert len(hatched) == count + 1  # and one in the legend


def deadlines(found: Report) -> list[float]:
    dashed = [e for e in elements(found, "line") if "stroke-dasharray" in e.attrib]
    return [float(e.attrib["x1"]) for e in dashed[1:]]  # the first is in the legend


@pytest.mark.parametrize("name", [name for name in PLAYS if report(name).cycles])
def test_every_cycle_has_a_panel_with_its_deadline_at_the_same_distance(name: str) -> None:
    found = report(name)
    places = deadlines(found)
    assert len(places) == len(found.cycles)
    starts = [float(e.attrib["x"]) for e in elements(found, "rect") if e.attrib["fill"] == BAND]
    assert starts == sorted(starts)
    assert [place - start for place, start in zip(places, starts, strict=True)] == pytest.approx(
        [places[0] - starts[0]] * len(places), abs=0.02
    )


def test_a_bar_that_ends_past_the_deadline_is_drawn_past_it() -> None:
    found = report("tail")
    bars = [e for e in elements(found, "rect") if e.attrib["fill"] == COLORS["upload"]][1:]
    ends = [float(e.attrib["x"]) + float(e.attrib["width"]) for e in bars]
    late = found.cycles[0].assignments[2]
    assert late.arrived_s > found.cycles[0].began_s + found.cycles[0].deadline_s
    assert ends[2] > deadlines(found)[0] > ends[1]


def test_the_head_of_a_panel_says_its_number_seconds_and_accuracy() -> None:
    found = report("late")
    said = texts(found)
    for cycle in found.cycles:
        expected = {
            f"cycle {cycle.number}",
            f"{cycle.waited_s:.4g} s",
            f"{cycle.accuracy:.1%}",
        }
        assert expected <= set(said)


@pytest.mark.parametrize(("cycles", "devices"), [(1, 2), (2, 4), (6, 4), (12, 46), (30, 2)])
def test_labels_of_neighbouring_panels_do_not_touch(cycles: int, devices: int) -> None:
    found = Report.of(played([FakeDevice(0.2)] * devices, passes=1, cycles=cycles, min_shards=0))
    lines: dict[str, list[tuple[float, str]]] = {}
    for each in elements(found, "text"):
        title = each.find(f"{SVG}title")
        said = (title.tail if title is not None else each.text) or ""
        if float(each.attrib["x"]) >= LEFT and "font-weight" not in each.attrib:
            lines.setdefault(each.attrib["y"], []).append((float(each.attrib["x"]), said))
    for line in lines.values():
        for (x, said), (next_x, _) in pairwise(sorted(line)):
            assert next_x - x >= 5.5 * len(said), (said, line)


def test_of_many_cycles_and_learners_those_are_drawn_that_can_be_read() -> None:
    learners = MAX_LEARNERS + 5
    found = Report.of(
        played([FakeDevice(0.2)] * learners, passes=1, cycles=MAX_CYCLES + 3, min_shards=0)
    )
    said = texts(found)
    assert f"the last {MAX_CYCLES} of {MAX_CYCLES + 3} cycles are drawn above" in said
    assert f"the first {MAX_LEARNERS} of {learners} learners are drawn" in said
    assert "device-39" in said
    assert "device-40" not in said
    assert {"cycle 4", f"cycle {MAX_CYCLES + 3}"} <= set(said)
    assert "cycle 3" not in said
    assert len(elements(found, "circle")) == 2 * (MAX_CYCLES + 3)


def with_scores(accuracies: list[float], losses: list[float]) -> Report:
    """A run with these scores, a cycle for each."""
    found = report("equal")
    pairs = zip(accuracies, losses, strict=True)
    cycles = (
        replace(found.cycles[0], number=number, accuracy=accuracy, loss=loss)
        for number, (accuracy, loss) in enumerate(pairs, 1)
    )
    return replace(found, cycles=tuple(cycles))


def end_labels(found: Report) -> list[ET.Element]:
    """The last values of accuracy and loss, as they are written beside their curves."""
    bold = [e for e in elements(found, "text") if "font-weight" in e.attrib]
    return [e for e in bold if e.attrib["fill"] in (COLORS["train"], COLORS["fetch shards"])]


ACCURACY = st.floats(0, 1) | st.just(nan)


@given(st.lists(st.tuples(ACCURACY, st.floats() | st.floats(0, 10)), min_size=1, max_size=20))
@example([(0.5, 0.5), (0.9, 0.09)])
@example([(nan, 1.7e308), (nan, -1.7e308)])
def test_scores_of_any_size_are_drawn_within_the_picture_and_labels_keep_apart(
    scores: list[tuple[float, float]],
) -> None:
    found = with_scores([a for a, _ in scores], [loss for _, loss in scores])
    assert not re.search(r'"-?(nan|inf)', found.plot().svg)
    assert found.plot().svg == found.plot().svg
    root = ET.fromstring(found.plot().svg)
    height = float(root.attrib["height"])
    for each in root.iter(f"{SVG}circle"):
        assert 0 <= float(each.attrib["cy"]) <= height
    places = sorted(float(each.attrib["y"]) for each in end_labels(found))
    assert len(places) == any(0 <= a <= 1 for a, _ in scores) + any(isfinite(b) for _, b in scores)
    assert all(after - before >= LABEL_GAP - 0.11 for before, after in pairwise(places))
    assert all(0 < place < height for place in places)


def axis(found: Report, name: str) -> dict[str, float]:
    """Labels of an axis, and how high they stand."""
    drawn = [e for e in elements(found, "text") if "font-weight" not in e.attrib]
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
    found = with_scores([accuracy] * len(losses), losses)
    labels = axis(found, "loss")
    assert list(labels) == [low, high, "loss"]
    assert labels[high] < labels["loss"] < labels[low]
    lines = [e for e in elements(found, "line") if e.attrib["x1"] == e.attrib["x2"]]
    (x,) = {float(e.attrib["x"]) for e in elements(found, "text") if e.text == "loss"}
    assert x > LEFT
    assert any(0 < x - float(e.attrib["x1"]) < 10 for e in lines)
    curve = [float(e.attrib["cy"]) for e in elements(found, "circle")]
    assert all(labels[high] - 5 <= y <= labels[low] for y in curve)


def test_accuracy_has_its_axis_at_the_left() -> None:
    labels = axis(with_scores([0.12, 0.78], [2.0, 1.0]), "accuracy")
    assert list(labels) == ["10%", "80%", "accuracy"]


def test_the_last_value_is_never_written_over_the_axis_of_the_loss() -> None:
    for cycles in (1, 3, 7, 12, 13, 60):
        found = with_scores([0.5] * cycles, [0.123] * cycles)
        (x,) = {float(e.attrib["x"]) for e in elements(found, "text") if e.text == "loss"}
        for each in end_labels(found):
            start = float(each.attrib["x"])
            assert start + LETTER_WIDTH * len(
                each.text or ""
            ) < x or start > x + LETTER_WIDTH * len("loss")


def test_end_labels_keep_apart_wherever_the_curves_end() -> None:
    for last in np.linspace(0, 1, 51).tolist():
        (one, other) = end_labels(with_scores([0.0, last], [1.0, last]))
        assert abs(float(one.attrib["y"]) - float(other.attrib["y"])) >= LABEL_GAP - 0.11


@given(st.lists(st.floats(-50, 150), max_size=12))
def test_labels_that_are_spaced_out_keep_order_gap_and_bounds(places: list[float]) -> None:
    spaced = space_out(places, 14, 0, 100)
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in spaced)
    assert sorted(range(len(places)), key=places.__getitem__) == sorted(
        range(len(places)), key=spaced.__getitem__
    )
    gap = min(14, 100 / max(len(places) - 1, 1))
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(sorted(spaced)))
    if all(after - before >= 14 for before, after in pairwise([-14, *sorted(places), 114])):
        assert spaced == pytest.approx(places)


def test_how_a_run_failed_is_written_below_it() -> None:
    found = report("no plan")
    assert found.reason in " ".join(texts(found))


def test_a_picture_is_shown_by_notebooks_and_written_whole(tmp_path: Path) -> None:
    picture = report("dab").plot()
    assert picture._repr_svg_() == picture.svg
    path = picture.save(tmp_path / "run.svg")
    assert path.read_text(encoding="utf-8") == picture.svg
    assert list(tmp_path.iterdir()) == [path]


@given(st.floats(1e-9, 1.7e308))
def test_rounded_up_is_never_below_and_never_far_above(value: float) -> None:
    assert value * (1 - 1e-9) <= round_up(value) <= 1.5 * value


def test_ticks_are_round_and_within() -> None:
    assert Scale(0, 60, 0, 1).ticks(6) == [0, 10, 20, 30, 40, 50, 60]
    assert Scale(792, 912, 0, 1).ticks(6) == [800, 820, 840, 860, 880, 900]
    assert Scale(5, 5, 0, 1)(5) == 0

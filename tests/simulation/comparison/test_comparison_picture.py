"""The picture of a comparison."""

from math import nan
from xml.etree import ElementTree as ET

from melisma.simulation.comparison.comparison_picture import draw_comparison
from melisma.simulation.comparison.scheme_runs import compare
from tests.simulation import scenarios
from tests.simulation.comparison.compared_runs import TIMING, runs_of, summarize


def test_a_picture_has_curves_only_where_something_is_trained() -> None:
    both = summarize(runs_of("dab", 1, 2, nan), runs_of("equal", 3, 4, 5))
    bars = compare(scenarios.make_task(), scenarios.make_fleet(), ["dab"], range(2), TIMING)
    drawn, plain = (draw_comparison(each).svg for each in (both, bars))
    assert "<polyline" in drawn
    assert "dab: 1 of 3 failed: no learner answered" in drawn
    assert "<polyline" not in plain
    assert "training time" in plain
    for svg in (drawn, plain, draw_comparison(summarize(runs_of("dab", nan))).svg):
        ET.fromstring(svg)

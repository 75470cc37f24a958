"""Kills of processes, and the visits that count nevertheless."""

import re

import numpy as np
import pytest

from benchmarks.live import goodput, goodput_picture
from benchmarks.simulation import goodput as simulated_goodput


@pytest.mark.parametrize("kind", [goodput.EACH_LEARNER, goodput.ORCHESTRATOR])
def test_crashes_have_the_mean_time_between_them_and_never_overlap(kind: str) -> None:
    crashes = simulated_goodput.draw_crashes(kind, 10.0, 30_000.0, 0)
    found = [re.fullmatch(r"crash (\w+) at ([\d.]+) for 2", crash) for crash in crashes]
    times = [(match[1], float(match[2])) for match in found if match]
    assert len(times) == len(crashes)
    assert times == sorted(times, key=lambda each: each[1])
    for target in {name for name, _ in times}:
        gaps = np.diff([0.0, *(at_s for name, at_s in times if name == target)])
        assert gaps[1:].min() >= simulated_goodput.RESTART_S - 0.01
        assert gaps.mean() - simulated_goodput.RESTART_S == pytest.approx(10, rel=0.1)


def test_the_picture_has_a_bar_for_each_figure() -> None:
    row = {f"{name} %": 50.0 for name in goodput.BETWEEN}
    part = {"rows": {goodput.EACH_LEARNER: row, goodput.ORCHESTRATOR: row}}
    picture = goodput_picture.picture(dict.fromkeys(goodput_picture.TITLES, part))
    bars = 2 * len(goodput_picture.TITLES) * len(goodput.BETWEEN)
    assert picture.count('width="26.00"') == bars

"""Fleets of unlike devices: they use their capacity and close their cycles by the deadline."""

import pytest

from benchmarks.simulation import fleets

SEED = 11


@pytest.mark.parametrize(
    "name",
    [
        name if name == "300 devices of three kinds" else pytest.param(name, marks=pytest.mark.slow)
        for name in fleets.SETTINGS
    ],
)
def test_a_small_fleet_reaches_the_targets_of_the_benchmark(name: str) -> None:
    # With few sleepers, more than a fifth of the work falls asleep in a cycle now and then.
    learners = 250 if "sleep" in name else 60
    report = fleets.run(fleets.SETTINGS[name], SEED, learners=learners)
    late = fleets.lateness(report)
    assert len(late) == 20
    assert report.capacity_used > fleets.LEAST_CAPACITY / 100
    assert sum(each <= fleets.TOLERANCE for each in late) / len(late) >= fleets.LEAST_PUNCTUAL / 100
    assert report.outside_share < fleets.MOST_OUTSIDE / 100

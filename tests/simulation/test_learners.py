from typing import Any

import numpy as np

from melisma.cycle import commands
from melisma.fleet.fleet import Fleet
from melisma.simulation.learners import SimulatedLearners
from melisma.simulation.sleep import SleepSpans
from tests.simulation.staging import LEARNERS, fleet, scene


def learners_of(among: Fleet, **said: Any) -> SimulatedLearners:
    one = scene(among=among, **said)
    changes = among.changes(one.horizon_s)
    sleep = SleepSpans(changes, among.learners)
    return SimulatedLearners(
        one.task, among, one.local_sizes.counts, sleep, lambda who, _: np.ones(who.size)
    )


def test_shards_that_one_measured_itself_on_are_fetched_once() -> None:
    slow = LEARNERS[0] | {"samples_per_s": 5.0}
    learners = learners_of(fleet([slow, LEARNERS[1]]), deadline_s=4.0, passes=5)
    who, nothing = np.arange(2), np.zeros(2, np.int64)
    ask = commands.AskBound(reason="", learners=who, cycle=1, deadline_s=4.0, held=nothing)
    _, asked = learners.ask_bounds(who, 0.0, ask, nothing)
    assert asked[0] == 0 < asked[1]
    # Who can do nothing measures itself once more, on what it has.
    held = learners._held.between(0, 2)[0]
    assert learners._holds.tolist() == np.bincount(held).tolist() == [8, 8]

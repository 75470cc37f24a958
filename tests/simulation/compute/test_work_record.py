"""Records of the shards that simulated learners were given."""

import numpy as np
import pytest

from melisma.cycle import commands
from melisma.cycle.ragged import RaggedArray
from melisma.simulation.compute.work_record import WeightedWork, WorkRecords

LEARNERS, ONES = np.arange(2), np.ones(2, np.int64)


def make_part(*, recording: bool) -> WeightedWork:
    """Updates of two learners; the first one released its second shard."""
    records = WorkRecords(2, recording=recording)
    records.add(
        commands.Dispatch(
            reason="",
            learners=LEARNERS,
            cycle=1,
            attempts=ONES,
            shards=RaggedArray(np.array([2, 1]), np.array([5, 6, 7])),
            passes=ONES,
            seconds_left=1.0,
            tail_s=0.0,
            predicted_s=np.ones(2),
        )
    )
    records.release(1, np.array([0]), np.array([6]))
    records.set_batches(1, LEARNERS, np.array([3, 4]))
    (part,) = records.updates_to_average(
        commands.Aggregate(
            reason="", cycle=1, learners=LEARNERS, attempts=ONES, weights=np.ones(2), visits=ONES
        )
    )
    return part


def test_updates_are_averaged_with_the_shards_that_their_learners_kept() -> None:
    part = make_part(recording=True)
    work = part.record.of(part.learners, part.attempts)
    assert [row.tolist() for row in work.shards] == [[5], [7]]
    assert work.batches.tolist() == [3, 4]


@pytest.mark.parametrize(("recording", "learners_kept"), [(True, 2), (False, 0)])
def test_without_recording_updates_are_known_but_not_their_work(
    recording: bool, learners_kept: int
) -> None:
    part = make_part(recording=recording)
    assert (part.record.cycle, part.learners.tolist()) == (1, [0, 1])
    assert part.record.batches.size == learners_kept

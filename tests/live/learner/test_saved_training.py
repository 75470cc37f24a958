"""A saved training is read back as it was written, or refused."""

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.events import PHASES
from melisma.errors import DataError
from melisma.learning.batches import BatchStream
from melisma.learning.trainer import TrainingState
from melisma.live.learner.saved_training import (
    RandomState,
    SavedHeader,
    SavedTraining,
    SavedWork,
    SpoolOwner,
    add_digest,
    decode_training,
    encode_training,
)
from melisma.live.protocol import ShardRef
from tests.learning.test_batches import splits
from tests.live.orchestrator.served_run import TASK

OWNER = SpoolOwner.of("r1", 3, TASK)
SIZES = [4, 8]


def shard(number: int, samples: int) -> ShardRef:
    return ShardRef(number, f"{number:064x}", 100 * samples, samples)


def saved_training(
    owner: SpoolOwner = OWNER,
    cycle: int = 2,
    attempt: int = 5,
    loss_sum: float = 1.5,
    size: int = 3,
) -> SavedTraining:
    """Return a training after two batches, with an extension that has not arrived."""
    rng = np.random.default_rng(4)
    stream = BatchStream(5, rng)
    stream.add_work(2, SIZES)
    stream.add_work(2, [6])
    for split in splits([(2, SIZES)]):
        stream.add_shard(split)
    for _ in range(2):
        next(stream)
    state = stream.state()
    header = SavedHeader(
        owner=owner,
        cycle=cycle,
        attempt=attempt,
        model="model-1.safetensors",
        works=(
            SavedWork(attempt, (shard(7, 4), shard(8, 8))),
            SavedWork(attempt + 1, (shard(9, 6),)),
        ),
        counts=state.counts,
        random=RandomState.of(rng),
        visits=10,
        phases=tuple(map(float, range(len(PHASES)))),
        trained_s=0.5,
        upload_s=0.25,
        left_s=3.5,
        shipped=1,
    )
    parameters: dict[str, Any] = {"weight": np.arange(size, dtype=np.float32), "bias": np.ones(())}
    extra: dict[str, Any] = {
        "optimizer.momentum.0": np.zeros((2, 0)),
        "rng.cpu": np.arange(9, dtype=np.uint8),
    }
    return SavedTraining(header, TrainingState(parameters, extra, 10, loss_sum), state)


@pytest.mark.parametrize("loss_sum", [0.1 + 0.2, np.nan, np.inf])
def test_a_training_is_read_back_as_it_was_written(loss_sum: float) -> None:
    training = saved_training(loss_sum=loss_sum)
    read = decode_training(encode_training(training))
    assert read.header == training.header
    assert read.key == (2, 5)
    for name in ("parameters", "extra"):
        written, arrays = getattr(training.state, name), getattr(read.state, name)
        assert arrays.keys() == written.keys()
        for key, array in written.items():
            assert arrays[key].dtype == array.dtype
            assert arrays[key].shape == array.shape
            assert np.array_equal(arrays[key], array)
    assert read.state.visits == 10
    assert np.array_equal(read.state.loss_sum, loss_sum, equal_nan=True)
    assert astuple(read.stream.counts) == astuple(training.stream.counts)
    assert np.array_equal(read.stream.order, training.stream.order)
    read.stream.check()


def test_a_random_generator_goes_on_where_it_was_saved() -> None:
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    rng.random(3, np.float32)  # an odd number of halves of a word
    state = RandomState.of(rng)
    state.restore(other)
    assert rng.random(5, np.float32).tolist() == other.random(5, np.float32).tolist()
    with pytest.raises(DataError, match="random generator"):
        RandomState("no digits", "1", 0, 0).restore(other)
    with pytest.raises(DataError, match="random generator"):
        RandomState("f" * 99, "1", 0, 0).restore(other)


CONTENT = encode_training(saved_training())


@given(st.integers(0, len(CONTENT) - 1))
def test_a_training_that_was_written_in_part_is_refused(size: int) -> None:
    with pytest.raises(DataError):
        decode_training(CONTENT[:size])


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_damaged_training_is_refused(place: int, change: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[place] ^= change
    with pytest.raises(DataError):
        decode_training(bytes(damaged))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_even_with_the_right_hash(content: bytes) -> None:
    with pytest.raises(DataError):
        decode_training(add_digest(content))


def test_the_owner_is_another_one_in_another_run_learner_or_task() -> None:
    from msgspec.structs import replace

    assert SpoolOwner.of("r1", 3, replace(TASK, deadline_s=99.0, cycles=7)) == OWNER
    for other in (
        SpoolOwner.of("r2", 3, TASK),
        SpoolOwner.of("r1", 4, TASK),
        SpoolOwner.of("r1", 3, replace(TASK, batch=TASK.batch + 1)),
        SpoolOwner.of("r1", 3, replace(TASK, model="other:Model")),
    ):
        assert other != OWNER

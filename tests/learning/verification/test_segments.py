"""Segments of a training: edges, hashes, and the states that a recorder keeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import DataError
from melisma.learning.trainer import TrainingState
from melisma.learning.verification.segments import (
    MAX_SEGMENTS,
    SegmentRecorder,
    SegmentStates,
    check_states,
    segment_edges,
    state_digest,
)


def state(number: int) -> TrainingState:
    return TrainingState({"w": np.full(3, number, np.float32)}, {"m": np.array(0.5)}, 0, 0.0)


class Counting:
    """A trainer whose state is the number of batches that it has trained."""

    batches = 0

    def checkpoint(self) -> TrainingState:
        return state(self.batches)


def recorded(batches: int) -> SegmentRecorder:
    recorder, trainer = SegmentRecorder(), Counting()
    for number in range(batches + 1):
        trainer.batches = number
        recorder.record(number, trainer)  # type: ignore[arg-type] # only its checkpoint is used
    return recorder


@given(st.integers(1, 5000))
def test_segments_cover_all_batches_and_there_are_at_most_eight(batches: int) -> None:
    edges = segment_edges(batches)
    assert [*edges[0][:1], *(end for _, end in edges)] == [
        0,
        *(start for start, _ in edges[1:]),
        batches,
    ]
    assert len(edges) <= MAX_SEGMENTS
    assert len(edges) >= min(batches, MAX_SEGMENTS // 2 + 1)


@given(st.integers(1, 300), st.data())
def test_a_recorder_keeps_the_states_of_every_segment(batches: int, data: st.DataObject) -> None:
    recorder, edges = recorded(batches), segment_edges(batches)
    segment = data.draw(st.integers(0, len(edges) - 1))
    states = recorder.states(batches, segment)
    start, end = edges[segment]
    assert (states.start is None) == (start == 0)
    assert (states.end is None) == (end == batches)
    for kept, number in ((states.start, start), (states.end, end)):
        assert kept is None or kept.parameters["w"][0] == number


@given(st.integers(1, 60), st.data())
def test_states_fit_the_hashes_of_their_own_segment_only(batches: int, data: st.DataObject) -> None:
    recorder, edges = recorded(batches), segment_edges(batches)
    update = {"w": np.ones(3, np.float32)}
    digests = recorder.digests(batches, update)
    segment = data.draw(st.integers(0, len(edges) - 1))
    states = recorder.states(batches, segment)
    assert check_states(states, digests, batches, segment, update) == ""
    other = data.draw(st.integers(0, len(edges) - 1))
    if other != segment:
        assert check_states(states, digests, batches, other, update)


def test_another_update_or_number_of_hashes_is_refused() -> None:
    recorder, update = recorded(20), {"w": np.ones(3, np.float32)}
    digests, states = recorder.digests(20, update), recorder.states(20, 1)
    changed = {"w": np.full(3, 1.1, np.float32)}
    assert "does not have the hash" in check_states(states, digests, 20, 1, changed)
    assert "hashes" in check_states(states, digests[:-1], 20, 1, update)


def test_states_survive_the_way_through_named_arrays() -> None:
    states = recorded(20).states(20, 1)
    copy = SegmentStates.from_arrays(states.to_arrays())
    for one, other in ((states.start, copy.start), (states.end, copy.end)):
        assert one is not None
        assert other is not None
        assert state_digest(one.parameters, one.extra) == state_digest(
            other.parameters, other.extra
        )
    with pytest.raises(DataError, match="no array of a segment"):
        SegmentStates.from_arrays({"middle": np.zeros(1)})


@given(st.sampled_from(["value", "name", "dtype", "shape", "kind"]))
def test_every_part_of_a_state_is_in_its_hash(part: str) -> None:
    array = np.arange(4, dtype=np.float32)
    changed: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "value": ({"w": array + 1}, {}),
        "name": ({"v": array}, {}),
        "dtype": ({"w": array.view(np.int32)}, {}),
        "shape": ({"w": array.reshape(2, 2)}, {}),
        "kind": ({}, {"w": array}),
    }
    assert state_digest({"w": array}, {}) != state_digest(*changed[part])

"""Segments of a training: a learner commits to all of them before it knows which one is checked.

A segment has a power of two of batches, so that there are 5 to 8 of them (fewer in a training of
fewer batches): a learner that trains until a deadline does not know the number of its batches in
advance, and drops every second state whenever there are more than eight.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import ResumableTrainer, TrainingState

MAX_SEGMENTS: Final = 8
START, END = "start", "end"
PARAMETER, EXTRA = "parameter", "extra"


def segment_batches(batches: int) -> int:
    """Return the batches of a segment in a training of this many; the last one may be short."""
    return 1 << max(0, -(-batches // MAX_SEGMENTS) - 1).bit_length()


def segment_edges(batches: int) -> list[tuple[int, int]]:
    """Return the first batch of each segment, and the one after its last."""
    step = segment_batches(batches)
    return list(pairwise([*range(0, batches, step), batches]))


def state_digest(parameters: Arrays, extra: Arrays) -> str:
    """Return a hash of parameters and of what else a trainer needs to go on from them."""
    digest = hashlib.sha256()
    for kind, arrays in ((PARAMETER, parameters), (EXTRA, extra)):
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            digest.update(f"{kind} {name} {array.dtype.str} {arrays[name].shape}\n".encode())
            digest.update(array.data if array.size else b"")
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class SegmentStates:
    """The states at both edges of a segment; None before the first batch and after the last."""

    start: TrainingState | None
    end: TrainingState | None

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        arrays = dict[str, NDArray[Any]]()
        for edge, state in ((START, self.start), (END, self.end)):
            if state is not None:
                arrays |= {f"{edge} {PARAMETER} {n}": a for n, a in state.parameters.items()}
                arrays |= {f"{edge} {EXTRA} {n}": a for n, a in state.extra.items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "SegmentStates":
        """Return the states of `to_arrays`; raise `DataError` for other names."""
        parts: dict[str, dict[str, dict[str, NDArray[Any]]]] = {START: {}, END: {}}
        for name, array in arrays.items():
            edge, _, rest = name.partition(" ")
            kind, _, own = rest.partition(" ")
            if edge not in parts or kind not in (PARAMETER, EXTRA):
                raise DataError(f"{name!r} is no array of a segment")
            parts[edge].setdefault(kind, {})[own] = array
        return cls(*(_state(parts[edge]) for edge in (START, END)))


def _state(parts: Mapping[str, dict[str, NDArray[Any]]]) -> TrainingState | None:
    if not parts:
        return None
    return TrainingState(parts.get(PARAMETER, {}), parts.get(EXTRA, {}), 0, 0.0)


class SegmentRecorder:
    """Keeps the states of a training at the edges of its segments while it runs."""

    def __init__(self) -> None:
        self._states: dict[int, TrainingState] = {}
        self._step = 1

    def record(self, batches: int, trainer: ResumableTrainer) -> None:
        """Keep the present state if it is at an edge; call when all of `batches` are trained."""
        while batches > MAX_SEGMENTS * self._step:
            self._step *= 2
            self._states = {n: s for n, s in self._states.items() if not n % self._step}
        if batches and not batches % self._step and batches not in self._states:
            self._states[batches] = trainer.checkpoint()

    def fill(self, batches: int, state: TrainingState) -> None:
        """Use a state at all edges where none was kept, as a learner does that did not train."""
        for _, end in segment_edges(batches)[:-1]:
            self._states.setdefault(end, state)

    def digests(self, batches: int, parameters: Arrays) -> tuple[str, ...]:
        """Return the hash at the end of each segment; the last is that of the update."""
        ends = [end for _, end in segment_edges(batches)[:-1]]
        hashes = [state_digest(s.parameters, s.extra) for s in map(self._states.__getitem__, ends)]
        return (*hashes, state_digest(parameters, {}))

    def states(self, batches: int, segment: int) -> SegmentStates:
        """Return the states at the edges of a segment of a training of this many batches."""
        start, end = segment_edges(batches)[segment]
        last = self._states[end] if end < batches else None
        return SegmentStates(self._states[start] if start else None, last)


def check_states(
    states: SegmentStates, digests: Sequence[str], batches: int, segment: int, update: Arrays
) -> str:
    """Return why states are not those of a commitment; empty if they are."""
    edges = segment_edges(batches)
    if len(digests) != len(edges):
        return f"there are {len(digests)} hashes of {len(edges)} segments"
    if digests[-1] != state_digest(update, {}):
        return "the update does not have the hash that its learner committed to"
    first, last = segment == 0, segment == len(edges) - 1
    if (states.start is None) != first or (states.end is None) != last:
        return f"the states of segment {segment} are incomplete"
    for state, index in ((states.start, segment - 1), (states.end, segment)):
        if state is not None and digests[index] != state_digest(state.parameters, state.extra):
            return f"a state of segment {segment} does not have the hash that was committed to"
    return ""

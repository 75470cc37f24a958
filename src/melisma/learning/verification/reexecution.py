"""Re-execution of a segment of a training, and its comparison with the result that was reported.

The same segment does not end with the same bits everywhere: kernels, numbers of threads and
devices add numbers in different orders. So the difference is compared with the change that the
segment makes: separately for the weights, the buffers and each kind of state of the optimizer, as
one of them may be much larger than the others.

Where training is chaotic, as with a learning rate that is too large, such differences grow without
bound; with Adam they do so in single arrays, whose gradients are zero but for rounding errors. So
before an update is called wrong, the segment is trained once more from a start that differs by
rounding only. Arrays in which that makes a difference say nothing and are left out of the
comparison. If most weights are, the check says nothing at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from math import inf, isfinite, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import ResumableTrainer, TrainingState

TOLERANCE: Final = 0.05
"""The largest difference of an honest update, relative to the change that its segment makes."""
ROUNDING: Final = 64.0
"""A difference of this many units in the last place is within the tolerance of any change."""
PERTURBATION: Final = 16.0
"""The difference of the other start, in units in the last place of its weights."""
SENSITIVITY_MARGIN: Final = 10.0
"""An honest update differs at most this many times as much as the one from the other start."""
MAX_SENSITIVITY: Final = 0.05
"""An array says nothing if the other start makes a larger difference in it."""
MIN_STABLE: Final = 0.5
"""The least part of the weights with which a re-execution says anything."""
SMALLEST: Final = 1e-300
RANDOM: Final = "rng."
WEIGHTS, BUFFERS = "weights", "buffers"


class Verdict(IntEnum):
    """The result of a check by re-execution."""

    UNCHECKED = 0
    RIGHT = 1
    WRONG = 2
    IMPOSSIBLE = 3  # it says nothing: the training cannot be repeated here


def repeat_segment(
    trainer: ResumableTrainer,
    start: TrainingState | Arrays,
    batches: Iterable[Split],
    rng: np.random.Generator,
) -> TrainingState:
    """Train batches from a state, or from the parameters of a cycle; return the state after them.

    Raise `DataError` if the trainer cannot go on from the state.
    """
    parameters: Arrays = start.parameters if isinstance(start, TrainingState) else start
    if isinstance(start, TrainingState):
        trainer.restore(start)
    ends = list[TrainingState]()

    def feed() -> Iterator[Split]:
        yield from batches
        ends.append(trainer.checkpoint())

    trainer.train(parameters, feed(), rng)
    return ends[0]


def perturbed(state: TrainingState, rng: np.random.Generator) -> TrainingState:
    """Return a state whose parameters differ by rounding."""

    def change(array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype.kind != "f":
            return array
        unit = PERTURBATION * np.finfo(array.dtype).eps
        factors = 1 + unit * rng.uniform(-1, 1, array.shape)
        return np.asarray(array * factors, array.dtype)

    parameters = {name: change(array) for name, array in state.parameters.items()}
    return replace(state, parameters=parameters)


def differs_in_random_state(one: TrainingState, other: TrainingState) -> bool:
    """Return whether the generators of two states differ in kind or in state."""
    states = [
        {name: array.tobytes() for name, array in state.extra.items() if name.startswith(RANDOM)}
        for state in (one, other)
    ]
    return states[0] != states[1]


def unstable_arrays(
    other: TrainingState, repeated: TrainingState, start: TrainingState
) -> frozenset[str]:
    """Return the arrays in which another start makes too large a difference."""
    arrays, known, before = _named(repeated), _named(other), _named(start)
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return frozenset(
        name
        for name, array in floats.items()
        if _error({name: array}, known, before) > MAX_SENSITIVITY
    )


def stable_part(state: TrainingState, trainable: set[str], unstable: frozenset[str]) -> float:
    """Return the part of the weights that are in other arrays than these."""
    sizes = {n: a.size for n, a in state.parameters.items() if n in trainable}
    stable = sum(size for n, size in sizes.items() if f"parameter {n}" not in unstable)
    return stable / max(sum(sizes.values()), 1)


def relative_error(
    reported: TrainingState,
    repeated: TrainingState,
    start: TrainingState,
    trainable: set[str],
    left_out: frozenset[str] = frozenset(),
) -> float:
    """Return the largest difference of any group of arrays, relative to its change.

    Raise `DataError` for arrays that are missing or of another form.
    """
    groups = _groups(repeated, trainable)
    groups = {
        group: {name: array for name, array in arrays.items() if name not in left_out}
        for group, arrays in groups.items()
    }
    known, before = _named(reported), _named(start)
    return max([0.0, *(_error(arrays, known, before) for arrays in groups.values())])


def _named(state: TrainingState) -> dict[str, NDArray[Any]]:
    arrays = {f"parameter {name}": array for name, array in state.parameters.items()}
    return arrays | {f"extra {name}": array for name, array in state.extra.items()}


def _groups(state: TrainingState, trainable: set[str]) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the floating-point arrays of a state by group."""
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in state.parameters.items():
        if array.dtype.kind == "f":
            group = WEIGHTS if name in trainable else BUFFERS
            groups.setdefault(group, {})[f"parameter {name}"] = array
    for name, array in state.extra.items():
        if array.dtype.kind == "f" and not name.startswith(RANDOM):
            groups.setdefault(name.rpartition(".")[0], {})[f"extra {name}"] = array
    return groups


def _error(repeated: Arrays, reported: Arrays, before: Mapping[str, NDArray[Any]]) -> float:
    difference = change = rounding = 0.0
    for name, array in repeated.items():
        other = reported.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            raise DataError(f"{name} is missing or has another form")
        exact = array.astype(np.float64)
        start = before[name].astype(np.float64) if name in before else np.zeros_like(exact)
        with np.errstate(over="ignore", invalid="ignore"):
            difference += float(np.square(exact - other).sum())
            change += float(np.square(exact - start).sum())
            unit = ROUNDING * float(np.finfo(array.dtype).eps)
            rounding += float(np.square(unit * exact).sum())
    if difference == 0:
        return 0.0
    error = sqrt(difference / max(change, rounding / TOLERANCE**2, SMALLEST))
    return error if isfinite(error) else inf

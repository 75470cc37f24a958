"""The check of one update by re-execution of one of its segments, and its verdict."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import nan
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.trainer import ResumableTrainer, Trainer, TrainingState
from melisma.learning.verification.reexecution import (
    MIN_STABLE,
    RANDOM,
    SENSITIVITY_MARGIN,
    TOLERANCE,
    Verdict,
    differs_in_random_state,
    perturbed,
    relative_error,
    repeat_segment,
    stable_part,
    unstable_arrays,
)
from melisma.learning.verification.segments import (
    SegmentRecorder,
    SegmentStates,
    check_states,
    segment_edges,
)

CHECKING_DEVICE: Final = "cpu"
"""The kind of device that repeats trainings; others draw other random numbers."""
NOT_REPORTED: Final = "it was not trained as reported"


@runtime_checkable
class RepeatableTrainer(ResumableTrainer, Protocol):
    """A trainer whose results follow from parameters, batches and the seed of the generator."""

    def trainable(self) -> list[str]:
        """Return the names of the parameters that training changes."""


def require_repeatable(task: Task, trainer: Trainer) -> RepeatableTrainer:
    """Return the trainer of a task, or raise `SettingError` if its trainings cannot be repeated."""
    if not isinstance(trainer, RepeatableTrainer):
        raise SettingError(
            f'verify = "audit" needs a trainer with checkpoint, restore and trainable, and '
            f'{task.model} is a trainer without; use a torch.nn.Module, or verify = "filter"'
        )
    return trainer


def make_recorder(task: Task, trainer: Trainer) -> SegmentRecorder | None:
    """Return a recorder of segments, if the updates of the task are checked by re-execution."""
    if task.verify != "audit" or not isinstance(trainer, ResumableTrainer):
        return None
    return SegmentRecorder()


@dataclass(frozen=True, eq=False)
class ReportedTraining:
    """An update, its commitment, and the states at the edges of the challenged segment."""

    batches: int
    digests: Sequence[str]
    segment: int
    states: SegmentStates
    update: Arrays
    device: str = CHECKING_DEVICE


@dataclass(frozen=True, eq=False)
class AssignedTraining:
    """The training that a learner was given: its start, and its batches from the first one on.

    Each call of `batches` begins anew, and `rng` returns the generator of the training.
    """

    start: Arrays
    batches: Callable[[], Iterable[Split]]
    rng: Callable[[], np.random.Generator]


@dataclass(frozen=True)
class CheckResult:
    """A verdict with its reason, the difference that was found, and the visits of the check."""

    verdict: Verdict
    reason: str = ""
    error: float = 0.0
    visits: int = 0


@dataclass(frozen=True)
class UpdateChecks:
    """All checks of one update: verdict, statistic of the first filter, and cost in visits."""

    verdict: Verdict = Verdict.UNCHECKED
    reason: str = ""
    gap: float = nan
    visits: float = 0.0


def describe_environment(trainer: Trainer) -> str:
    """Return the version of PyTorch and the kind of device, with which rounding may change."""
    torch = sys.modules.get("torch")
    device = getattr(getattr(trainer, "device", None), "torch_device", None)
    kind = getattr(device, "type", CHECKING_DEVICE)
    return f"torch {getattr(torch, '__version__', 'none')}, {kind}"


class SegmentChecker:
    """Checks updates of one task by re-execution.

    `trainable` are the parameters that training changes; all others are buffers.
    """

    def __init__(self, trainer: ResumableTrainer, trainable: Iterable[str]) -> None:
        self._trainer, self._trainable = trainer, set(trainable)
        self._layout = Layout.from_arrays(trainer.initial())

    def check(self, reported: ReportedTraining, assigned: AssignedTraining) -> CheckResult:
        """Return whether a segment ends as it was reported, when it is trained once more."""
        batches, segment = reported.batches, reported.segment
        if problem := check_states(
            reported.states, reported.digests, batches, segment, reported.update
        ):
            return CheckResult(Verdict.WRONG, problem)
        first, last = segment_edges(batches)[segment]
        part = list(islice(assigned.batches(), first, last))
        if len(part) < last - first:
            return CheckResult(Verdict.WRONG, f"there are fewer than {last} batches to train")
        visits = sum(map(len, part))
        try:
            return replace(self._repeat(reported, assigned, part), visits=visits)
        except DataError as error:
            return CheckResult(Verdict.WRONG, str(error), visits=visits)

    def _repeat(
        self, reported: ReportedTraining, assigned: AssignedTraining, part: Sequence[Split]
    ) -> CheckResult:
        states, foreign = reported.states, reported.device != CHECKING_DEVICE
        for state in filter(None, (states.start, states.end)):
            self._layout.check(state.parameters)
        empty = repeat_segment(self._trainer, assigned.start, [], assigned.rng())
        start = states.start or TrainingState(dict(assigned.start), {}, 0, 0.0)
        if foreign and states.start:
            start = _with_random_states(start, empty)
        origin: TrainingState | Arrays = start if states.start else assigned.start
        repeated = repeat_segment(self._trainer, origin, part, assigned.rng())
        end = states.end or TrainingState(dict(reported.update), {}, 0, 0.0)
        # After the last batch nothing but the parameters is reported.
        known = repeated if states.end else replace(repeated, extra={})
        if foreign and differs_in_random_state(start if states.start else empty, repeated):
            return CheckResult(Verdict.IMPOSSIBLE, "its random numbers are those of another device")
        if states.end and not foreign and differs_in_random_state(end, repeated):
            return CheckResult(Verdict.WRONG, "its random numbers are not those of the seed")
        error = relative_error(end, known, start, self._trainable)
        if error <= TOLERANCE:
            return CheckResult(Verdict.RIGHT, error=error)
        return self._compare_with_rounding(error, end, known, start, part, assigned)

    def _compare_with_rounding(
        self,
        error: float,
        end: TrainingState,
        known: TrainingState,
        start: TrainingState,
        part: Sequence[Split],
        assigned: AssignedTraining,
    ) -> CheckResult:
        """Return whether an update differs by more than rounding errors that have grown."""
        rng = np.random.default_rng(len(part))
        moved = perturbed(start, rng)
        origin: TrainingState | Arrays = moved if start.extra else moved.parameters
        other = repeat_segment(self._trainer, origin, part, assigned.rng())
        other = other if known.extra else replace(other, extra={})
        unstable = unstable_arrays(other, known, start)
        if stable_part(known, self._trainable, unstable) < MIN_STABLE:
            return CheckResult(Verdict.IMPOSSIBLE, "its training magnifies rounding errors", error)
        error = relative_error(end, known, start, self._trainable, unstable)
        sensitivity = relative_error(other, known, start, self._trainable, unstable)
        if error <= TOLERANCE:
            return CheckResult(Verdict.RIGHT, error=error)
        if error <= SENSITIVITY_MARGIN * sensitivity:
            return CheckResult(Verdict.RIGHT, error=error)
        return CheckResult(Verdict.WRONG, f"{NOT_REPORTED}: it differs by {error:.2g}", error)


def _with_random_states(state: TrainingState, other: TrainingState) -> TrainingState:
    """Return a state with the generators of another."""
    extra = {name: a for name, a in state.extra.items() if not name.startswith(RANDOM)}
    return replace(state, extra=extra | _random_states(other.extra))


def _random_states(extra: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in extra.items() if name.startswith(RANDOM)}

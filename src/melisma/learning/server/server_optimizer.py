"""The optimiser of the orchestrator: from the parameters and their mean change to new parameters.

Only trainable arrays are optimised. Others, such as the statistics of BatchNorm, are the mean of
the updates; integers stay as they are. A trainer names its trainable arrays with `trainable()`;
without that method all floating-point arrays are trainable.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.server_settings import DEFAULTS, ServerName, ServerSettings
from melisma.learning.parameters import Arrays
from melisma.learning.server.adam_step import adam_step
from melisma.learning.server.mean_step import mean_step
from melisma.learning.server.momentum_step import momentum_step
from melisma.learning.server.nesterov_step import nesterov_step
from melisma.learning.server.yogi_step import yogi_step
from melisma.learning.trainer import Trainer

State = tuple[NDArray[Any], ...]
# From the mean change and the state of an array to the step that it makes, and the next state.
ServerStep = Callable[..., tuple[NDArray[Any], State]]
STEPS: dict[ServerName, ServerStep] = {
    "mean": mean_step,
    "momentum": momentum_step,
    "nesterov": nesterov_step,
    "adam": adam_step,
    "yogi": yogi_step,
}


class ServerOptimizer:
    """Applies the mean changes of a run, one after another, in double precision."""

    def __init__(self, settings: ServerSettings, trainable: Iterable[str] = ()) -> None:
        values = {key: getattr(settings, key) for key in DEFAULTS[settings.name]}
        self._step = partial(STEPS[settings.name], **values)
        # The mean itself, without the rounding of a difference and a sum.
        self._changes_nothing = settings.name == "mean" and settings.lr == 1.0
        self._trainable = frozenset(trainable)
        self._state: dict[str, State] = {}
        self._before = self._state

    def apply(self, present: Arrays, mean: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the next parameters, from the present ones and the mean of updates."""
        self._before = self._state
        if self._changes_nothing:
            return mean
        new, self._state = dict(mean), dict(self._state)
        for name in mean.keys() & self._trainable:
            change = mean[name].astype(np.float64) - present[name]
            step, self._state[name] = self._step(change, self._state.get(name, ()))
            new[name] = (present[name] + step).astype(mean[name].dtype)
        return new

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state as named arrays; empty if the optimiser has none."""
        return {
            f"{name}/{index}": array
            for name, state in self._state.items()
            for index, array in enumerate(state)
        }

    def load(self, arrays: Arrays, before: Arrays) -> None:
        """Go on from a state, and from the one before it if it is undone, as `arrays` has them."""
        self._state, self._before = _state_of(arrays), _state_of(before)

    def undo(self) -> None:
        """Return to the state before the latest step, because its result is not kept."""
        self._state = self._before


def _state_of(arrays: Arrays) -> dict[str, State]:
    state: dict[str, dict[int, NDArray[Any]]] = {}
    for key, array in arrays.items():
        name, _, index = key.rpartition("/")
        state.setdefault(name, {})[int(index)] = array
    return {name: tuple(parts[i] for i in range(len(parts))) for name, parts in state.items()}


def trainable_arrays(trainer: Trainer) -> tuple[str, ...]:
    """Return the names of the arrays that a trainer changes by gradients."""
    parameters = trainer.initial()
    names = list(getattr(trainer, "trainable", parameters.keys)())
    for name in names:
        if name not in parameters:
            raise SettingError(
                f"trainable() of the model returns {name!r}; expected names of its parameters, "
                f"such as {next(iter(parameters))!r}"
            )
    return tuple(name for name in names if parameters[name].dtype.kind == "f")

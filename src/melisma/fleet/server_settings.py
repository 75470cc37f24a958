"""`[task.server]`: the optimiser that the orchestrator applies to the mean change of a cycle.

Defaults are those of Reddi et al. 2021, "Adaptive Federated Optimization"; `lr`, which they tune
for each task, is 1 without adaptive step sizes, and 0.01 with them.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from melisma.fleet.tables import Positive, Table

Decay = Annotated[float, Meta(ge=0, lt=1)]
ServerName = Literal["mean", "momentum", "nesterov", "adam", "yogi"]

MOMENTUM: Final = {"lr": 1.0, "momentum": 0.9}
ADAPTIVE: Final = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3}
# The settings of each optimiser, with their defaults.
DEFAULTS: Final[dict[ServerName, dict[str, float]]] = {
    "mean": {"lr": 1.0},
    "momentum": MOMENTUM,
    "nesterov": MOMENTUM,
    "adam": ADAPTIVE,
    "yogi": ADAPTIVE,
}


class ServerSettings(Table, frozen=True, kw_only=True):
    """The optimiser of the orchestrator; None where it has no such setting."""

    name: ServerName = "mean"
    lr: Positive | None = None
    momentum: Decay | None = None
    beta1: Decay | None = None
    beta2: Decay | None = None
    eps: Positive | None = None

    def __post_init__(self) -> None:
        """Set defaults; raise ValueError for a setting that this optimiser does not have."""
        known = DEFAULTS[self.name]
        for key in ("lr", "momentum", "beta1", "beta2", "eps"):
            value = getattr(self, key)
            if value is not None and key not in known:
                raise ValueError(
                    f'server.{key} is {value:g}, which name = "{self.name}" does not use; '
                    f"expected {', '.join(known)}"
                )
            if value is None and key in known:
                msgspec.structs.force_setattr(self, key, known[key])

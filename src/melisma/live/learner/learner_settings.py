"""The settings of a learner process, which reads them as JSON; without NumPy, as `joining` is."""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from melisma.disclosure import Disclosure

LEARNER_MODULE: Final = "melisma.live.learner.learner_process"
"""The module whose `main` reads `LearnerSettings`."""
DEFAULT_CACHE_BYTES: Final = 4 << 30


class OperatingState(NamedTuple):
    """An operating state: its probability, the shares of compute and bandwidth left, its stressor.

    A device that runs the stressor ignores the shares.
    """

    probability: float = 1.0
    compute: float = 1.0
    bandwidth: float = 1.0
    stress: str = ""


class OwnStates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operating states of a device, drawn by `seed`; it knows their probabilities, or not."""

    states: tuple[OperatingState, ...] = (OperatingState(),)
    seed: int = 1
    state_probabilities: Literal["given", "estimated"] = "given"


class EmulatedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An emulated device: share of a core, link, and operating states, drawn by `seed`.

    With `sample_s` it trains a sample in that time, whatever its share of a core. `noise` has the
    relative deviations of compute and bandwidth and their correlation time; `trace` the rows of a
    `BandwidthTrace`. It knows the probabilities of its states, or they are estimated.
    """

    core_share: float
    downlink_bps: float
    uplink_bps: float
    latency_s: float
    states: tuple[OperatingState, ...] = (OperatingState(),)
    seed: int = 1
    sample_s: float | None = None
    noise: tuple[float, float, float] = (0.0, 0.0, 1.0)
    trace: tuple[tuple[float, float, float], ...] = ()
    state_probabilities: Literal["given", "estimated"] = "given"


class LearnerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one learner.

    It is known to the orchestrator by its own `token`, or by the identity in the file
    `certificate`.
    `discloses` is the most that it reports before its update. `local_data` is a folder or a
    `module:function` on the device. `compute_device` is ``auto``, ``cpu``, ``cuda`` or ``mps``.

    A model of the task that is not built in is imported only from `allowed_modules`, which are
    searched for in `module_path`, too, or with `trust_code` from the source that the orchestrator
    offers. That code is limited to `memory_bytes`, by default 75 % of the memory.
    A real device is in the operating states of the file `states`, always idle without one.
    In the folder `spool` it saves the training that it is at, for the process that replaces it.
    An orchestrator of several tasks has a name for each `task`. The processes of a device for these
    tasks take turns by the file `turns`. `price` is that of a shard.
    The process of a `supervised` learner writes reports to standard output, and leaves the run when
    its standard input is closed.
    """

    name: str
    orchestrator: tuple[str, ...]
    token: str | None = None
    certificate: str | None = None
    cache: str
    cache_bytes: int = DEFAULT_CACHE_BYTES
    discloses: Disclosure = "costs"
    device: EmulatedDevice | None = None
    module_path: tuple[str, ...] = ()
    compute_device: str = "auto"
    allowed_modules: tuple[str, ...] = ()
    trust_code: bool = False
    memory_bytes: Annotated[int, msgspec.Meta(gt=0)] | None = None
    local_data: str | None = None
    spool: str | None = None
    task: str = ""
    turns: str | None = None
    price: float | None = None
    states: str | None = None
    supervised: bool = False

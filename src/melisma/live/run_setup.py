"""What a run was started with, in its journal: enough to resume it without any other file."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

import msgspec
import numpy as np

from melisma.errors import DataError
from melisma.fleet.array_types import NO_FLOATS, Floats
from melisma.fleet.task import Task
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.orchestrator.lobby import TIME_FORMAT, StartCondition
from melisma.live.orchestrator_settings import Decide, OrchestratorSettings
from melisma.runs.journal import Journal

SETUP: Final = "setup"
"""The record with the `RunSetup`."""
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class EmulatedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that this machine emulates; `complete_settings` adds what their settings lack.

    `local_samples` are the samples on each device in federated learning. `groups` are the first
    device and the number of devices of each group of the fleet.
    """

    learners: tuple[LearnerSettings, ...]
    local_samples: tuple[int, ...]
    rates: tuple[tuple[float | None, ...], ...]
    groups: dict[str, tuple[int, int]]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(learner.name for learner in self.learners)

    @property
    def ranges(self) -> Mapping[str, range]:
        """The devices of each group."""
        return {name: range(first, first + n) for name, (first, n) in self.groups.items()}

    @property
    def rate_table(self) -> Floats:
        """The rates as in `TaskSubmitted`."""
        rows = [[np.nan if rate is None else rate for rate in row] for row in self.rates]
        return np.array(rows) if rows else NO_FLOATS

    @classmethod
    def encode_rates(cls, rates: Floats) -> tuple[tuple[float | None, ...], ...]:
        """Return the rates without NaN, which JSON does not have."""
        return tuple(tuple(None if np.isnan(r) else r for r in row) for row in rates.tolist())


class Reachability(msgspec.Struct, frozen=True, kw_only=True):
    """The `OrchestratorSettings` of a run on devices that join, but for the owner's decisions."""

    learners: int | None
    until_ready: float | str | None
    host: str
    port: Port
    approves: bool
    once: bool
    max_learners: int
    name: str
    discovery: bool

    @classmethod
    def of(cls, settings: OrchestratorSettings) -> "Reachability":
        """Return what can be saved of these settings."""
        names = ("host", "port", "once", "max_learners", "name", "discovery")
        return cls(
            learners=settings.start.learners,
            until_ready=settings.start.begins_at or settings.start.until_ready,
            approves=settings.approve is not None,
            **{name: getattr(settings, name) for name in names},
        )

    def settings(self, approve: Decide | None) -> OrchestratorSettings:
        """Return the settings, with the function that decides about devices."""
        names = ("host", "port", "once", "max_learners", "name", "discovery")
        until_ready = self.until_ready
        if isinstance(until_ready, str) and until_ready <= datetime.now().strftime(TIME_FORMAT):  # noqa: DTZ005 - local
            until_ready = 0.0
        return OrchestratorSettings(
            start=StartCondition(self.learners, until_ready),
            approve=approve,
            **{name: getattr(self, name) for name in names},
        )


class RunSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a run, and its devices: emulated ones, or those that join.

    `module_path` lists the folders of the user's modules. `shards` is a checksum over all shards.
    """

    run: str
    task: Task
    module_path: tuple[str, ...]
    shards: str
    fleet: EmulatedFleet | None = None
    reachability: Reachability | None = None

    @classmethod
    def read(cls, journal: Journal) -> "RunSetup":
        """Return the setup of a run; `DataError` if the journal has none that can be read."""
        content = journal.get(SETUP)
        if content is None:
            raise DataError(
                f"{journal.path} does not say what the run was started with: it was killed before "
                "it began; delete the folder and start it again"
            )
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as error:
            raise DataError(f"{journal.path}: the setup of the run is invalid: {error}") from None

    def encode(self) -> bytes:
        """Return the setup as the content of a record."""
        return msgspec.json.encode(self)


def to_groups(groups: Mapping[str, range]) -> dict[str, tuple[int, int]]:
    """Return the groups of a fleet for `EmulatedFleet`."""
    return {name: (members.start, len(members)) for name, members in groups.items()}

"""Which version of the parameters is current, and which one each cycle began with.

Versions are numbered from 0, the initial parameters; no number is used twice. They follow from the
steps of a run alone, so that a resumed run knows them by replay.
"""

import msgspec

from melisma.cycle import commands, events
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.runs.trace import Step


class ModelVersions(msgspec.Struct):
    """The current version, the one before the latest average, and the highest so far."""

    current: int = 0
    before: int = 0
    latest: int = 0
    of_cycle: dict[int, int] = msgspec.field(default_factory=dict)

    def apply(self, step: Step) -> None:
        """Add one step."""
        match step.event:
            case events.Aggregated(model=version):
                self.before, self.current = self.current, version
            case events.TaskContinued(model=int(version)):
                self.before = self.current = version
        self.latest = max(self.latest, self.current)
        for command in step.commands:
            match command:
                case commands.Restore():
                    self.current = self.before
                case commands.Dispatch(cycle=cycle):
                    self._begin_cycle(cycle)

    def _begin_cycle(self, cycle: int) -> None:
        known, oldest = {cycle: self.current} | self.of_cycle, cycle - MAX_LATE_CYCLES - 1
        self.of_cycle = {key: value for key, value in known.items() if key >= oldest}

    @property
    def in_use(self) -> set[int]:
        """The versions that learners start from, or that the run may return to."""
        return {self.current, self.before, *self.of_cycle.values()}

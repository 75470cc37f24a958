"""A live run whose machine loses power again and again, and is resumed.

All processes are killed at once, and the folder is replaced by a state that the disk of a machine
may have after a power cut.
"""

from dataclasses import dataclass, field

from benchmarks.live.killed_orchestrator import KilledRun, Process
from benchmarks.live.power_cuts.crash_states import RecordedDisk
from benchmarks.live.power_cuts.recorder import Recorder

LOGS = "run/logs/"
"""Logs are written by processes that inherit the open file."""


@dataclass
class CutRun(KilledRun):
    """The folder of a run whose machine loses power, and the recorder of its disk."""

    recorder: Recorder = field(kw_only=True)

    def process(self, *arguments: str) -> Process:
        """Start a command of Melisma after a start of the machine."""
        self.recorder.restart()
        self._disk = RecordedDisk(self.folder)
        variables = self.recorder.variables(self.folder)
        return Process(*arguments, folder=self.folder, variables=variables)

    def stop(self, process: Process) -> bool:
        """Cut the power; return False if the process had ended before."""
        killed = process.cut_power()
        if killed:
            self._disk.apply(self.recorder.changes())
            self._disk.cut_power(self.rng)
        return killed

    def check(self) -> None:
        """Check the run, and that its recorder missed nothing."""
        self._check_recorder()
        super().check()

    def _check_recorder(self) -> None:
        """Raise `RuntimeError` unless the changes since the last start of the machine are known."""
        self._disk.apply(self.recorder.changes())
        kept = {name: it for name, it in self._disk.files().items() if not name.startswith(LOGS)}
        now = RecordedDisk(self.folder).files()
        found = {name: content for name, content in now.items() if not name.startswith(LOGS)}
        if wrong := [name for name in kept | found if kept.get(name) != found.get(name)]:
            raise RuntimeError(f"changes of these files were not recorded: {', '.join(wrong)}")

"""One task of a run of several: its trace, progress, model and report."""

from collections.abc import Callable
from pathlib import Path

from melisma.runs.folder import create_run_folder, task_folder
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step, TraceFile
from melisma.simulation.simulation import PreparedSimulation, keep_checkpoints, save_results


class TaskRun:
    """The record of one task; with a folder for all tasks, in a run folder of its own there."""

    def __init__(self, number: int, prepared: PreparedSimulation, folder: Path | None) -> None:
        task = prepared.scenario.task
        self.prepared, self.compute = prepared, prepared.make_compute()
        self.progress = RunProgress()
        self._folder: Path | None = None
        self._trace: TraceFile | None = None
        if folder is not None:
            self._folder = create_run_folder(folder / task_folder(number, task.name))
            self._trace = TraceFile(self._folder)
        self._keep: Callable[[Step], None] = keep_checkpoints(self._folder, task, self.compute)

    def record(self, step: Step) -> None:
        """Record a step."""
        if self._trace is not None:
            self._trace.write(step)
        self.progress.apply(step)
        self._keep(step)

    def close(self) -> None:
        """Release what was computed, and end the trace."""
        self.compute.close()
        if self._trace is not None:
            self._trace.close()

    def report(self) -> Report:
        """Return the report; save the model and the picture, if there is a folder."""
        report = self.progress.report()
        return report if self._folder is None else save_results(report, self._folder, self.compute)

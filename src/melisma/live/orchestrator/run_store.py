"""The files that the orchestrator keeps in a run folder, each written atomically.

::

    trace.jsonl          every event and command
    model.safetensors    the model after the last cycle that changed it
    updates/             updates of the current cycle
    parameters/          the models that learners of this cycle and the previous one start from
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from melisma.atomic import write_atomic
from melisma.learning.aggregation import SpooledUpdate, UpdateSpool, weighted_mean
from melisma.learning.data.shards import ShardFolder
from melisma.learning.parameters import Arrays, Layout
from melisma.live.protocol import INITIAL_MODEL, ShardRef
from melisma.runs.folder import MODEL_FILE, PARAMETERS_FOLDER, UPDATES_FOLDER
from melisma.runs.trace import Step, TraceFile

TEMPORARY_FOLDERS = (UPDATES_FOLDER, PARAMETERS_FOLDER)


@dataclass
class RunStore:
    """The folder of one run, and the shards that learners download."""

    folder: Path
    layout: Layout
    shards: ShardFolder | None
    version: int = 0
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trace = TraceFile(self.folder)
        for name in TEMPORARY_FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        shards = self.shards.shards if self.shards is not None else []
        self._shard_refs = [ShardRef(s.number, s.sha256, s.size_bytes, s.samples) for s in shards]
        self._accepted: dict[tuple[int, int, int], Path] = {}

    @property
    def samples(self) -> list[int]:
        """The number of samples of each shard."""
        return [ref.samples for ref in self._shard_refs]

    def shard_refs(self, numbers: Sequence[int]) -> tuple[ShardRef, ...]:
        """Return references to shards by number."""
        return tuple(self._shard_refs[number] for number in numbers)

    def path(self, name: str) -> Path | None:
        """Return the file that learners may download by this name: a shard's hash, or a model."""
        if self.shards is not None and (path := self.shards.path(name)):
            return path
        served = (self.model_name, _model_name(self.version - 1), INITIAL_MODEL)
        return self.folder / PARAMETERS_FOLDER / name if name in served else None

    @property
    def model_name(self) -> str:
        """The file name of the current parameters."""
        return _model_name(self.version)

    def save_initial(self, parameters: Arrays) -> None:
        """Save the parameters before the first cycle."""
        self.parameters = dict(parameters)
        write_atomic(self.folder / PARAMETERS_FOLDER / self.model_name, save(self.parameters))

    def record(self, step: Step) -> None:
        """Append a step to the trace."""
        self._trace.write(step)

    def spool(self, cycle: int, learner: int, update: Arrays) -> Path:
        """Write an update to disk, from any thread; raise `DataError` if it does not fit."""
        return UpdateSpool(self.folder / UPDATES_FOLDER / f"{cycle}", self.layout).add(
            learner, update
        )

    def accept(self, assignment: tuple[int, int, int], path: Path) -> None:
        """Remember the spooled update of an assignment (learner, cycle, attempt)."""
        self._accepted[assignment] = path

    def take_accepted(
        self, cycle: int, learners: Sequence[int], attempts: Sequence[int]
    ) -> list[Path]:
        """Return the updates of these assignments and forget all accepted updates."""
        pairs = zip(learners, attempts, strict=True)
        paths = [self._accepted[learner, cycle, attempt] for learner, attempt in pairs]
        self._accepted.clear()
        return paths

    def aggregate(self, cycle: int, updates: Sequence[SpooledUpdate]) -> None:
        """Replace the parameters by the mean of the updates; keep them if there are no updates."""
        if updates:
            self.parameters = weighted_mean(self.layout, updates)
            self.version += 1
            content = save(self.parameters)
            path = write_atomic(self.folder / PARAMETERS_FOLDER / self.model_name, content)
            self._publish(path, content)
            self._delete_old_parameters()
        shutil.rmtree(self.folder / UPDATES_FOLDER / f"{cycle}", ignore_errors=True)

    @property
    def model(self) -> Path | None:
        """The file of the trained model; None before the first update."""
        path = self.folder / MODEL_FILE
        return path if path.is_file() else None

    def close(self) -> None:
        """Close the trace and delete temporary folders; trace and model stay."""
        self._trace.close()
        for name in TEMPORARY_FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _publish(self, path: Path, content: bytes) -> None:
        """Link `path` to `model.safetensors`, or write the content again where links fail."""
        model, part = self.folder / MODEL_FILE, self.folder / "model.part"
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path)
        except OSError:  # Not every file system has hard links.
            write_atomic(model, content)
        else:
            part.replace(model)

    def _delete_old_parameters(self) -> None:
        """Delete parameters that no learner can start from; benchmarks still need the initial."""
        old = self.version - 2
        if old > 0:
            (self.folder / PARAMETERS_FOLDER / _model_name(old)).unlink(missing_ok=True)


def _model_name(version: int) -> str:
    return f"model-{version}.safetensors"

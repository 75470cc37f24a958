"""What the orchestrator keeps in the folder of a run, each file whole or not there.

::

    trace.jsonl          every event and command
    model.safetensors    the model after the last cycle that had one
    updates/             what learners handed in in this cycle
    parameters/          what the learners of this cycle and the one before begin with
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from melisma.atomic import write_atomic
from melisma.learning.aggregation import Spool, Spooled, weighted_mean
from melisma.learning.data.shards import ShardFolder
from melisma.learning.parameters import Arrays, Layout
from melisma.live.protocol import ShardRef
from melisma.runs.folder import TraceFile
from melisma.runs.trace import Step


@dataclass
class RunStore:
    """The folder of one run, and the shards that it hands out."""

    folder: Path
    layout: Layout
    shards: ShardFolder | None
    version: int = 0
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trace = TraceFile(self.folder)
        for part in ("updates", "parameters"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self._shard_refs = (
            [ShardRef(s.number, s.sha256, s.size_bytes, s.samples) for s in self.shards.shards]
            if self.shards is not None
            else []
        )

    def shard_refs(self, numbers: Sequence[int]) -> tuple[ShardRef, ...]:
        """Shards by number, as learners fetch them."""
        return tuple(self._shard_refs[number] for number in numbers)

    @property
    def samples(self) -> list[int]:
        """Samples of each shard."""
        return [parcel.samples for parcel in self._shard_refs]

    def path(self, name: str) -> Path | None:
        """What learners may fetch by name: shards by their hash, and parameters."""
        if self.shards is not None and (path := self.shards.path(name)):
            return path
        served = (self.model_name, f"model-{self.version - 1}.safetensors", "model-0.safetensors")
        return self.folder / "parameters" / name if name in served else None

    @property
    def model_name(self) -> str:
        """What the parameters of now are called."""
        return f"model-{self.version}.safetensors"

    def save_initial(self, parameters: Arrays) -> None:
        """The parameters before the first cycle."""
        self.parameters = dict(parameters)
        write_atomic(self.folder / "parameters" / self.model_name, save(self.parameters))

    def record(self, step: Step) -> None:
        """One more line of the trace."""
        self._trace.write(step)

    def keep(self, cycle: int, learner: int, update: Arrays) -> Path:
        """Write an update down, from any thread; `DataError` if it is none of this model."""
        return Spool(self.folder / "updates" / f"{cycle}", self.layout).add(learner, update)

    def aggregate(self, cycle: int, updates: Sequence[Spooled]) -> None:
        """The mean of these updates is the model from here on; without any it stays."""
        if updates:
            self.parameters = weighted_mean(self.layout, updates)
            self.version += 1
            content = save(self.parameters)
            path = write_atomic(self.folder / "parameters" / self.model_name, content)
            self._link(path, content)
            self._forget()
        shutil.rmtree(self.folder / "updates" / f"{cycle}", ignore_errors=True)

    @property
    def model(self) -> Path | None:
        """The trained model, if there is one yet."""
        path = self.folder / "model.safetensors"
        return path if path.is_file() else None

    def close(self) -> None:
        """Keep what is for others: the trace and the model."""
        self._trace.close()
        for part in ("updates", "parameters"):
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def _link(self, path: Path, content: bytes) -> None:
        """Give the model in `path` the name that stays, without writing it twice if possible."""
        model, part = self.folder / "model.safetensors", self.folder / "model.part"
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path)
        except OSError:  # Not every file system has hard links.
            write_atomic(model, content)
        else:
            part.replace(model)

    def _forget(self) -> None:
        """Parameters that nobody can begin with any more; those of the benchmark stay."""
        old = self.version - 2
        if old > 0:
            (self.folder / "parameters" / f"model-{old}.safetensors").unlink(missing_ok=True)

"""Saves the training of a learner while it runs, and lets its successor go on with it."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.events import PHASES
from melisma.errors import DataError
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Layout
from melisma.learning.trainer import OptimizerKeeper, ResumableTrainer, Trainer
from melisma.live.learner.active_assignment import ActiveAssignment
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.fetcher import Fetcher, ShardFeed, Source
from melisma.live.learner.resumption import Resumption, plan_resumption
from melisma.live.learner.saved_training import (
    RandomState,
    SavedHeader,
    SavedTraining,
    SavedWork,
    SpoolOwner,
)
from melisma.live.learner.training_spool import TrainingSpool, note
from melisma.live.protocol import ExtendTraining, ShardRef, Train
from melisma.user_code import describe_error


class TrainingSaver:
    """Copies the state of a training between two batches, for a spool to write."""

    def __init__(
        self,
        spool: TrainingSpool,
        owner: SpoolOwner,
        trainer: Trainer,
        fetcher: Fetcher,
        downloader: Downloader,
        local_shards: Sequence[Split],
    ) -> None:
        self._spool, self._owner, self._fetcher = spool, owner, fetcher
        self._trainer = trainer if isinstance(trainer, ResumableTrainer) else None
        self._keeper = trainer if isinstance(trainer, OptimizerKeeper) else None
        self._layout = Layout.from_arrays(trainer.initial())
        self._downloader, self._local_shards = downloader, local_shards
        self._local_numbers = {id(shard): number for number, shard in enumerate(local_shards)}
        self._local_refs: dict[int, ShardRef] = {}

    def save_optimizer(self) -> None:
        """Save the state of the optimizer after a training, if the trainer can keep it."""
        if self._keeper is not None:
            self._spool.save_optimizer(self._keeper.optimizer_state)

    def restore_optimizer(self) -> None:
        """Restore the state that the optimizer had in an earlier process of the learner."""
        saved = self._spool.optimizer
        if self._keeper is None or saved is None:
            return
        try:
            self._keeper.load_optimizer_state(saved)
        except Exception as error:  # noqa: BLE001 - the trainer may be the user's
            reason = str(error) if isinstance(error, DataError) else describe_error(error)
            note(f"the optimizer begins anew: {reason}")

    def save_if_due(self, assignment: ActiveAssignment, feed: ShardFeed) -> None:
        """Save a training if that is due; call when its trainer has trained all of its batches."""
        if self._trainer is None or not self._spool.is_due(assignment.visits):
            return
        began_at = time.monotonic()
        state = self._trainer.checkpoint()
        works, stream = self._fetcher.snapshot(feed)
        attempts, random = list(assignment.attempts), RandomState.of(feed.stream.rng)
        phases, left_s = assignment.phases(), assignment.left_s()
        train, trained_s, shipped = assignment.train, assignment.trained_s, feed.shipped

        def build() -> SavedTraining:
            saved_works = (
                SavedWork(attempt, tuple(map(self._shard_ref, sources)))
                for attempt, sources in zip(attempts, works, strict=False)
            )
            header = SavedHeader(
                owner=self._owner,
                cycle=train.cycle,
                attempt=train.attempt,
                model=train.model,
                works=tuple(saved_works),
                counts=stream.counts,
                random=random,
                visits=state.visits,
                phases=tuple(phases[phase] for phase in PHASES),
                trained_s=trained_s,
                upload_s=assignment.upload_s,
                left_s=left_s,
                shipped=shipped,
            )
            return SavedTraining(header, state, stream)

        self._spool.save(assignment.visits, began_at, build)

    def restore(
        self,
        saved: SavedTraining,
        train: Train,
        extensions: Sequence[ExtendTraining],
        feed: ShardFeed,
    ) -> tuple[Resumption, dict[str, NDArray[Any]]]:
        """Restore the stream and the generator of a new feed, and the trainer.

        Return the rest of the training, and the parameters with which the trainer continues it.
        Raise `DataError` if that is not possible, with nothing changed but the feed.
        """
        if self._trainer is None:
            raise DataError("the trainer has no methods checkpoint and restore")
        if saved.header.model != train.model:
            raise DataError(f"it began with {saved.header.model}, not with {train.model}")
        self._layout.check(saved.state.parameters)
        rest = plan_resumption(saved, train, extensions, self._shard_refs)
        arrived = [self._read(source) for source in self.as_sources(rest.arrived)]
        feed.stream.restore(rest.stream, arrived)
        saved.header.random.restore(feed.stream.rng)
        # In the order of the model.
        parameters = {f.name: saved.state.parameters[f.name] for f in self._layout.fields}
        self._trainer.restore(replace(saved.state, parameters=parameters))
        return rest, parameters

    def _read(self, source: Source) -> Split:
        """Return a shard that is on the device; raise `DataError` if it is not."""
        if not isinstance(source, ShardRef):
            return source
        if not self._downloader.has(source):
            raise DataError(f"shard {source.number} is no longer in the cache")
        (split,) = self._downloader.read_shards([source])
        return split

    def sources(self, work: Train | ExtendTraining) -> Sequence[Source]:
        """Return the shards of an instruction: on the device, or to be fetched."""
        return [self._local_shards[number] for number in work.local_shards] or work.shards

    def as_sources(self, shards: Sequence[ShardRef]) -> list[Source]:
        """Return the shards of these references, of which those on the device have been hashed."""
        local = {ref: self._local_shards[number] for number, ref in self._local_refs.items()}
        return [local.get(shard, shard) for shard in shards]

    def _shard_refs(self, work: Train | ExtendTraining) -> list[ShardRef]:
        return [self._shard_ref(source) for source in self.sources(work)]

    def _shard_ref(self, source: Source) -> ShardRef:
        """Return the reference of a shard; one on the device is hashed once."""
        if isinstance(source, ShardRef):
            return source
        number = self._local_numbers[id(source)]
        if number not in self._local_refs:
            arrays = [np.ascontiguousarray(a) for a in (source.samples, source.labels)]
            digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
            size_bytes = sum(array.nbytes for array in arrays)
            self._local_refs[number] = ShardRef(number, digest, size_bytes, len(source))
        return self._local_refs[number]

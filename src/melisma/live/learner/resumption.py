"""What a learner goes on with when its assignment is repeated after its process was replaced.

Shards that were taken back meanwhile are trained no further; the visits already made of them stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from melisma.errors import DataError
from melisma.learning.stream_state import StreamState
from melisma.live.learner.saved_training import SavedTraining
from melisma.live.protocol import ExtendTraining, ShardRef, Train

ShardRefs = Callable[[Train | ExtendTraining], Sequence[ShardRef]]


@dataclass(frozen=True, eq=False)
class Resumption:
    """The rest of a saved training.

    `works` are the shards of each of its work items, and `attempts` their attempts. The first
    shards have `arrived`, the others are `missing`.
    `released` are the numbers of shards that the learner had released; the orchestrator may not
    know that.
    """

    attempts: list[int]
    works: list[list[ShardRef]]
    stream: StreamState
    arrived: list[ShardRef]
    missing: list[ShardRef]
    released: list[int]


def plan_resumption(
    saved: SavedTraining, train: Train, extensions: Sequence[ExtendTraining], shard_refs: ShardRefs
) -> Resumption:
    """Return what is left of a training of an assignment, now repeated with its extensions.

    `shard_refs` returns the shards of an instruction, also if they are on the device. Raise
    `DataError` if a shard has other samples than before.
    """
    known: list[Train | ExtendTraining] = [train, *extensions]
    instructions = {work.attempt: shard_refs(work) for work in known}
    works, attempts = saved.header.works, [work.attempt for work in saved.header.works]
    kept: dict[int, list[int]] = {}
    released = []
    for index, work in enumerate(works):
        repeated, numbers = {*instructions.get(work.attempt, ())}, {s.number for s in work.shards}
        kept[index] = [place for place, shard in enumerate(work.shards) if shard in repeated]
        unknown = sorted(shard.number for shard in repeated - {*work.shards})
        if changed := [number for number in unknown if number in numbers]:
            raise DataError(f"shard {changed[0]} has other samples now")
        released += unknown
    stream = saved.stream.keep_shards(kept)
    rest = [[work.shards[place] for place in kept[index]] for index, work in enumerate(works)]
    arrived, missing = list[ShardRef](), list[ShardRef]()
    for item, shards in zip(stream.counts.items, rest, strict=True):
        arrived += shards[: item.arrived]
        missing += shards[item.arrived :]
    return Resumption(attempts, rest, stream, arrived, missing, released)

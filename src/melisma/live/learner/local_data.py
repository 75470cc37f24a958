"""Data that lies on a device in federated learning: whole shards, or some samples held back."""

from pathlib import Path

from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import held_back
from melisma.learning.data.shards import decoded


def read_local_data(folder: str | None, *, hold_back: bool) -> tuple[list[Split], list[Split]]:
    """The shards of a folder in the order of their names, and what is held back of them."""
    paths = sorted(Path(folder).iterdir()) if folder is not None else []
    shards = [decoded(path.read_bytes()) for path in paths]
    if not hold_back:
        return shards, []
    return [_select(shard, back=False) for shard in shards], [_select(s, back=True) for s in shards]


def _select(shard: Split, *, back: bool) -> Split:
    chosen = held_back(len(shard)) == back
    return Split(shard.samples[chosen], shard.labels[chosen])

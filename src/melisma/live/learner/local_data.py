"""The data on a device in federated learning: shards to train, and samples held back."""

from pathlib import Path

from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import holdout_mask
from melisma.learning.data.shards import decode_shard


def read_local_data(folder: str | None, *, hold_back: bool) -> tuple[list[Split], list[Split]]:
    """Read the shards of a folder in the order of their names; return them and samples held back.

    Without `hold_back` all samples are trained on.
    """
    paths = sorted(Path(folder).iterdir()) if folder is not None else []
    shards = [decode_shard(path.read_bytes()) for path in paths]
    if not hold_back:
        return shards, []
    trained = [_select(shard, held=False) for shard in shards]
    return trained, [_select(shard, held=True) for shard in shards]


def _select(shard: Split, *, held: bool) -> Split:
    mask = holdout_mask(len(shard)) == held
    return Split(shard.samples[mask], shard.labels[mask])

"""Downloads of parameters and shards; a shard that was fetched in part is continued."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from melisma.errors import DataError, MelismaError, RefusedError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache
from melisma.learning.parameters import Layout
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.protocol import ShardRef


class TimeUpError(MelismaError):
    """The time for a download is up."""


class Downloader:
    """Fetches parameters and shards of one run over the device's link; caches shards."""

    def __init__(self, orchestrator: Connection, cache: ShardCache, layout: Layout) -> None:
        self._orchestrator, self._cache, self._layout = orchestrator, cache, layout

    def fetch_model(
        self, name: str, device: Device, time_is_up: Callable[[], bool] = lambda: False
    ) -> dict[str, NDArray[Any]] | None:
        """Fetch parameters; None if time is up, `DataError` if they are of another model."""
        content = bytearray()

        def append(piece: bytearray) -> None:
            content.extend(piece)
            if time_is_up():
                raise TimeUpError

        try:
            self._fetch(name, device, lambda: len(content), append)
        except (TimeUpError, RefusedError):
            # Parameters that are already deleted belong to an assignment that is too late.
            return None
        try:
            arrays: dict[str, NDArray[Any]] = load(bytes(content))
        except SafetensorError as error:
            raise DataError(f"{name} is not a valid safetensors file: {error}") from error
        self._layout.check(arrays)
        return {field.name: arrays[field.name] for field in self._layout.fields}

    def fetch_shard(
        self,
        shard: ShardRef,
        device: Device,
        time_is_up: Callable[[], bool] = lambda: False,
        needed: Sequence[str] = (),
    ) -> None:
        """Fetch a shard into the cache; if time is up, keep the part that has arrived.

        Shards whose hashes are `needed` are not evicted.
        """
        sha256, cache = shard.sha256, self._cache

        def append(piece: bytearray) -> None:
            cache.append(sha256, piece)
            if time_is_up():
                raise TimeUpError

        with suppress(TimeUpError):
            self._fetch(sha256, device, lambda: cache.partial_bytes(sha256), append)
            cache.finish(sha256, needed)

    def fetch_again(self, shard: ShardRef, device: Device) -> None:
        """Fetch a shard that is in the cache and discard it, to measure the link."""
        received_bytes = 0

        def discard(piece: bytearray) -> None:
            nonlocal received_bytes
            received_bytes += len(piece)

        self._fetch(shard.sha256, device, lambda: received_bytes, discard)

    def count_cached(self) -> int:
        """Return the number of shards in the cache."""
        return len(self._cache.hashes())

    def fraction_in_cache(self, shard: ShardRef) -> float:
        """Return the fraction of a shard that is in the cache."""
        # In this order: another thread may finish the shard in between.
        fraction = self._cache.partial_bytes(shard.sha256) / max(shard.size_bytes, 1)
        return 1.0 if self.has(shard) else fraction

    def has(self, shard: ShardRef) -> bool:
        """Return whether a whole shard is in the cache."""
        return shard.sha256 in self._cache

    def read_shards(self, shards: Iterable[ShardRef]) -> list[Split]:
        """Read those of the shards that are in the cache."""
        return [self._cache.read(shard.sha256) for shard in shards if self.has(shard)]

    def _fetch(
        self,
        name: str,
        device: Device,
        received_bytes: Callable[[], int],
        append: Callable[[bytearray], object],
    ) -> None:
        device.start_download()
        for piece in self._orchestrator.fetch(name, received_bytes()):
            device.add_downloaded(len(piece))
            append(piece)

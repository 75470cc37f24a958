"""Downloads of parameters and shards; a shard that was fetched in part is continued.

The orchestrator states the size of a shard, and the model implies that of its parameters: a
download that exceeds it is refused. Shards of one assignment must fit in the cache together.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from melisma.errors import DataError, MelismaError, RefusedError, SettingError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache
from melisma.learning.parameters import Layout
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.protocol import ShardRef

MAX_ARRAY_HEADER_BYTES: Final = 1 << 10
"""The most bytes in a safetensors header for dtype, shape and place of an array."""


class TimeUpError(MelismaError):
    """The time for a download is up."""


class Downloader:
    """Fetches parameters and shards of one run over the device's link; caches shards."""

    def __init__(self, orchestrator: Connection, cache: ShardCache, layout: Layout) -> None:
        self._orchestrator, self._cache, self._layout = orchestrator, cache, layout
        self._max_model_bytes = _max_file_bytes(layout)

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
            self._fetch(name, device, 0, self._max_model_bytes, append)
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

        Shards whose hashes are `needed` are not evicted. Raise `DataError` if the shard is not the
        announced one, `SettingError` if the cache has no room for it.
        """
        sha256, cache = shard.sha256, self._cache

        def append(piece: bytearray) -> None:
            cache.append(sha256, piece)
            if time_is_up():
                raise TimeUpError

        cache.make_room(sha256, shard.size_bytes, needed)
        received_bytes = cache.partial_bytes(sha256)
        try:
            self._fetch(sha256, device, received_bytes, shard.size_bytes, append)
            cache.finish(sha256)
        except TimeUpError:
            return
        except DataError:
            cache.discard(sha256)
            if not received_bytes:
                raise
            # A power cut may have damaged the part of an earlier process.
            self.fetch_shard(shard, device, time_is_up, needed)

    def fetch_again(self, shard: ShardRef, device: Device) -> None:
        """Fetch a shard that is in the cache and discard it, to measure the link."""
        self._fetch(shard.sha256, device, 0, shard.size_bytes, lambda _piece: None)

    def fits(self, shards: Iterable[ShardRef]) -> bool:
        """Return whether the cache takes all these shards at once."""
        return sum(shard.size_bytes for shard in shards) <= self._cache.max_bytes

    def require_room(self, shards: Iterable[ShardRef]) -> None:
        """Raise `SettingError` unless the cache takes all shards of an assignment at once."""
        shards = list(shards)
        if not self.fits(shards):
            raise SettingError(
                f"the orchestrator assigned {len(shards)} shards with "
                f"{sum(shard.size_bytes for shard in shards)} bytes, but this device stores at "
                f"most {self._cache.max_bytes}: allow more (--cache-bytes) or use smaller shards"
            )

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
        """Read those of the shards that are in the cache, equal ones once."""
        unique = {shard.sha256: shard for shard in shards if self.has(shard)}
        return [self._cache.read(sha256, shard.size_bytes) for sha256, shard in unique.items()]

    def _fetch(
        self,
        name: str,
        device: Device,
        start: int,
        max_bytes: int,
        append: Callable[[bytearray], object],
    ) -> None:
        """Fetch a file from byte `start` on; raise `DataError` if it exceeds `max_bytes`."""
        device.start_download()
        received_bytes = start
        for piece in self._orchestrator.fetch(name, start):
            received_bytes += len(piece)
            if received_bytes > max_bytes:
                raise DataError(f"{name} exceeds its {max_bytes} bytes: the download was ended")
            device.add_downloaded(len(piece))
            append(piece)


def _max_file_bytes(layout: Layout) -> int:
    """Return the most bytes of a safetensors file with these arrays."""
    names = (json.dumps(field.name) for field in layout.fields)
    return layout.size_bytes + sum(
        MAX_ARRAY_HEADER_BYTES + len(name) for name in ("safetensors", *names)
    )

"""What a learner fetches: parameters and shards, by plain GET, taken up where a line broke."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from melisma import axon
from melisma.errors import DataError, MelismaError, RefusedError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache
from melisma.learning.parameters import Layout
from melisma.live.learner.device import Device
from melisma.live.protocol import ShardRef

# So often a line may break while one thing is fetched.
MAX_ATTEMPTS = 5


class TimeUpError(MelismaError):
    """There is no time for more."""


class Downloader:
    """Parameters and shards of one run, over the link of the device, into its cache."""

    def __init__(self, orchestrator: axon.Remote, cache: ShardCache, layout: Layout) -> None:
        self._orchestrator, self._cache, self._layout = orchestrator, cache, layout

    def fetch_model(
        self, name: str, device: Device, over: Callable[[], bool] = lambda: False
    ) -> dict[str, NDArray[Any]] | None:
        """Parameters by name, or nothing when time is over; `DataError` if of another model."""
        content = bytearray()

        def take(piece: bytearray) -> None:
            content.extend(piece)
            if over():
                raise TimeUpError

        try:
            self._fetch(name, device, lambda: len(content), take)
        except (TimeUpError, RefusedError):
            # Who is so late that they are gone already has no use for them.
            return None
        try:
            arrays: dict[str, NDArray[Any]] = load(bytes(content))
        except SafetensorError as error:
            raise DataError(f"{name} holds no parameters: {error}") from error
        self._layout.check(arrays)
        return {field.name: arrays[field.name] for field in self._layout.fields}

    def fetch_shard(
        self,
        parcel: ShardRef,
        device: Device,
        over: Callable[[], bool] = lambda: False,
        needed: Sequence[str] = (),
    ) -> None:
        """Bring a shard here; when time is over what came is left for another time."""
        sha256, cache = parcel.sha256, self._cache

        def take(piece: bytearray) -> None:
            cache.append(sha256, piece)
            if over():
                raise TimeUpError

        with suppress(TimeUpError):
            self._fetch(sha256, device, lambda: cache.begun_bytes(sha256), take)
            cache.finish(sha256, needed)

    def held_shards(self) -> int:
        """How many shards are here."""
        return len(self._cache.held())

    def fetched_fraction(self, parcel: ShardRef) -> float:
        """How much of a shard is here."""
        if self.has(parcel):
            return 1.0
        return self._cache.begun_bytes(parcel.sha256) / max(parcel.size_bytes, 1)

    def has(self, parcel: ShardRef) -> bool:
        """Whether a shard is here."""
        return parcel.sha256 in self._cache

    def read_shards(self, parcels: Iterable[ShardRef]) -> list[Split]:
        """Those of these shards that are here."""
        return [self._cache.read(each.sha256) for each in parcels if each.sha256 in self._cache]

    def _fetch(
        self,
        name: str,
        device: Device,
        begun_bytes: Callable[[], int],
        take: Callable[[bytearray], object],
    ) -> None:
        device.start_transfer()
        for left in reversed(range(MAX_ATTEMPTS)):
            try:
                for piece in axon.fetch(self._orchestrator, name, begun_bytes()):
                    device.add_bytes(len(piece))
                    take(piece)
            except OSError as error:
                if not left:
                    raise DataError(f"{name} cannot be fetched: {error}") from error
            else:
                return

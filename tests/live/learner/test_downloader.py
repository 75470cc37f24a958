"""What a learner fetches arrives whole, once, and is taken up where a line broke."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from melisma import axon
from melisma.axon.address import Address
from melisma.errors import DataError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache, encoded
from melisma.learning.parameters import Layout
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.protocol import ShardRef

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
HERE = Device(None)


def a_shard(number: int = 0, samples: int = 400) -> tuple[ShardRef, bytes]:
    rng = np.random.default_rng(number)
    split = Split(rng.integers(0, 255, (samples, 28, 28), np.uint8), np.zeros(samples, np.uint8))
    content = encoded(split)
    return ShardRef(number, hashlib.sha256(content).hexdigest(), len(content), samples), content


class Place:
    """A worker with files, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []  # type: ignore[var-annotated]

    def path(self, name: str) -> Path:
        self.asked.append(name)
        return self.folder / name


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "served").mkdir()
    return Place(tmp_path / "served")


@contextmanager
def supply(place: Place, cache: ShardCache) -> Iterator[Downloader]:
    worker = axon.Worker(port=0, files=place.path)
    with worker.start() as address, axon.connect(address) as orchestrator:
        yield Downloader(orchestrator, cache, Layout.of(ARRAYS))


def test_a_shard_is_fetched_once(place: Place, tmp_path: Path) -> None:
    parcel, content = a_shard()
    (place.folder / parcel.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with supply(place, cache) as found:
        assert not found.has(parcel)
        found.fetch_shard(parcel, HERE)
        assert found.has(parcel)
        (split,) = found.read_shards([parcel])
        assert len(split) == parcel.samples
    assert place.asked == [parcel.sha256]


def test_a_shard_of_another_hash_is_refused(place: Place, tmp_path: Path) -> None:
    parcel, content = a_shard()
    (place.folder / parcel.sha256).write_bytes(content[:-1] + b"x")
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with supply(place, cache) as found, pytest.raises(DataError, match="SHA-256"):
        found.fetch_shard(parcel, HERE)
    assert not found.has(parcel)


def test_when_time_is_over_what_came_is_kept_for_another_time(place: Place, tmp_path: Path) -> None:
    parcel, content = a_shard()
    (place.folder / parcel.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with supply(place, cache) as found:
        found.fetch_shard(
            parcel, HERE, time_is_up=lambda: cache.begun_bytes(parcel.sha256) > 100_000
        )
        begun = cache.begun_bytes(parcel.sha256)
        assert 100_000 < begun < len(content)
        assert not found.has(parcel)
        found.fetch_shard(parcel, HERE)
        assert found.has(parcel)


class Cut:
    """Carries a connection to the worker, and cuts it after so many bytes, so many times."""

    def __init__(self, target: str, after_bytes: int, times: int) -> None:
        self._target, self._after, self.left = Address.parse(target), after_bytes, times
        self.carried = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(caller,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        worker = socket.create_connection((self._target.host, self._target.port))
        threading.Thread(target=_pump, args=(caller, worker), daemon=True).start()
        passed = 0
        with caller, worker:
            while piece := worker.recv(8192):
                caller.sendall(piece)
                passed += len(piece)
                self.carried += len(piece)
                if self.left and passed > self._after:
                    self.left -= 1
                    # Another thread reads from it: closing alone would leave the line open.
                    caller.shutdown(socket.SHUT_RDWR)
                    return

    def close(self) -> None:
        self._server.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(8192):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_a_line_that_breaks_is_taken_up_where_it_broke(place: Place, tmp_path: Path) -> None:
    parcel, content = a_shard()
    (place.folder / parcel.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with axon.Worker(port=0, files=place.path).start() as address:
        cut = Cut(address, after_bytes=150_000, times=2)
        try:
            with axon.connect(cut.address) as orchestrator:
                Downloader(orchestrator, cache, Layout.of(ARRAYS)).fetch_shard(parcel, HERE)
        finally:
            cut.close()
    assert cut.left == 0
    assert parcel.sha256 in cache
    # Of what came before a cut only the piece under way comes again.
    assert cut.carried < len(content) + 3 * (1 << 16) + 3000


def test_a_line_that_breaks_for_good_is_an_error(place: Place, tmp_path: Path) -> None:
    parcel, content = a_shard()
    (place.folder / parcel.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with axon.Worker(port=0, files=place.path).start() as address:
        cut = Cut(address, after_bytes=1000, times=100)
        try:
            with (
                axon.connect(cut.address) as orchestrator,
                pytest.raises(DataError, match="cannot"),
            ):
                Downloader(orchestrator, cache, Layout.of(ARRAYS)).fetch_shard(parcel, HERE)
        finally:
            cut.close()


def test_a_small_cache_keeps_what_is_needed(place: Place, tmp_path: Path) -> None:
    shards = [a_shard(number, 100) for number in range(4)]
    for parcel, content in shards:
        (place.folder / parcel.sha256).write_bytes(content)
    parcels = [parcel for parcel, _ in shards]
    cache = ShardCache(tmp_path / "cache", int(2.5 * parcels[0].size_bytes))
    with supply(place, cache) as found:
        for parcel in parcels:
            found.fetch_shard(parcel, HERE, needed=[parcels[0].sha256])
        assert found.has(parcels[0])
        assert found.has(parcels[3])
        assert sum(map(found.has, parcels)) == 2


def test_parameters_of_another_model_are_refused(place: Place, tmp_path: Path) -> None:
    (place.folder / "mine").write_bytes(save(ARRAYS))
    (place.folder / "other").write_bytes(save({"weight": np.zeros(3, np.float32)}))
    (place.folder / "none").write_bytes(b"no parameters at all")
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with supply(place, cache) as found:
        mine = found.fetch_model("mine", HERE)
        assert mine is not None
        assert mine["weight"].tolist() == ARRAYS["weight"].tolist()
        assert found.fetch_model("gone", HERE) is None
        assert found.fetch_model("mine", HERE, time_is_up=lambda: True) is None
        with pytest.raises(DataError, match="weight"):
            found.fetch_model("other", HERE)
        with pytest.raises(DataError, match="not a valid safetensors file"):
            found.fetch_model("none", HERE)

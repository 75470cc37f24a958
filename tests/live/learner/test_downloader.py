"""Downloads arrive complete and once, and broken transfers are resumed."""

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from melisma import axon
from melisma.axon.address import Address
from melisma.errors import DataError, SettingError, UnreachableError
from melisma.fleet.emulation import MAX_CATCH_UP_S
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache, encode_shard
from melisma.learning.parameters import Layout
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.learner_settings import EmulatedDevice
from melisma.live.protocol import ShardRef

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
DEVICE = Device(None)


def make_shard(number: int = 0, samples: int = 400) -> tuple[ShardRef, bytes]:
    rng = np.random.default_rng(number)
    split = Split(rng.integers(0, 255, (samples, 28, 28), np.uint8), np.zeros(samples, np.uint8))
    content = encode_shard(split)
    return ShardRef(number, hashlib.sha256(content).hexdigest(), len(content), samples), content


class ServedFolder:
    """Files of a worker, and the names that were requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requested: list[str] = []

    def path(self, name: str, _caller: str) -> Path:
        self.requested.append(name)
        return self.folder / name


@pytest.fixture
def served(tmp_path: Path) -> ServedFolder:
    (tmp_path / "served").mkdir()
    return ServedFolder(tmp_path / "served")


@contextmanager
def connect(served: ServedFolder, cache: ShardCache) -> Iterator[Downloader]:
    worker = axon.Worker(port=0, files=served.path)
    with worker.start() as address, Connection([address]) as orchestrator:
        yield Downloader(orchestrator, cache, Layout.from_arrays(ARRAYS))


def test_a_shard_is_fetched_once(served: ServedFolder, tmp_path: Path) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader:
        assert not downloader.has(ref)
        downloader.fetch_shard(ref, DEVICE)
        assert downloader.has(ref)
        (split,) = downloader.read_shards([ref])
        assert len(split) == ref.samples
    assert served.requested == [ref.sha256]


def test_a_download_takes_the_time_of_the_downlink_and_an_upload_that_of_the_uplink(
    served: ServedFolder, tmp_path: Path
) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    bits, cache = 8 * len(content), ShardCache(tmp_path / "cache", 1 << 30)
    device = Device(EmulatedDevice(1.0, bits / 0.1, bits / 0.4, 0.0))
    with connect(served, cache) as downloader:
        began = time.monotonic()
        downloader.fetch_shard(ref, device)
        down_s = time.monotonic() - began
    device.delay_upload(len(content))
    up_s = time.monotonic() - began - down_s
    # A busy machine makes transfers longer, never shorter.
    assert down_s >= 0.1 - MAX_CATCH_UP_S
    assert up_s >= 0.4 - MAX_CATCH_UP_S


def test_a_cached_shard_can_be_fetched_again_to_measure_the_link(
    served: ServedFolder, tmp_path: Path
) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader:
        downloader.fetch_shard(ref, DEVICE)
        downloader.fetch_again(ref, DEVICE)
        assert downloader.has(ref)
    assert served.requested == [ref.sha256] * 2
    assert cache.partial_bytes(ref.sha256) == 0


def test_a_shard_of_another_hash_is_refused(served: ServedFolder, tmp_path: Path) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content[:-1] + b"x")
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader, pytest.raises(DataError, match="SHA-256"):
        downloader.fetch_shard(ref, DEVICE)
    assert not downloader.has(ref)


def test_a_part_that_a_power_cut_damaged_is_fetched_from_the_beginning(
    served: ServedFolder, tmp_path: Path
) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    cache.append(ref.sha256, bytes(1000))
    with connect(served, cache) as downloader:
        downloader.fetch_shard(ref, DEVICE)
        assert downloader.has(ref)
    assert served.requested == [ref.sha256] * 2


def test_when_time_is_up_the_partial_shard_is_kept(served: ServedFolder, tmp_path: Path) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader:
        downloader.fetch_shard(
            ref, DEVICE, time_is_up=lambda: cache.partial_bytes(ref.sha256) > 100_000
        )
        part_bytes = cache.partial_bytes(ref.sha256)
        assert 100_000 < part_bytes < len(content)
        assert not downloader.has(ref)
        downloader.fetch_shard(ref, DEVICE)
        assert downloader.has(ref)


class BreakingProxy:
    """Forwards connections to the worker, and closes the first ones after some bytes."""

    def __init__(self, target: str, after_bytes: int, times: int) -> None:
        self._target, self._after, self.left = Address.parse(target), after_bytes, times
        self.sent_bytes = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(caller,), daemon=True).start()

    def _forward(self, caller: socket.socket) -> None:
        worker = socket.create_connection((self._target.host, self._target.port))
        threading.Thread(target=_pump, args=(caller, worker), daemon=True).start()
        passed = 0
        with caller, worker:
            while piece := worker.recv(8192):
                caller.sendall(piece)
                passed += len(piece)
                self.sent_bytes += len(piece)
                if self.left and passed > self._after:
                    self.left -= 1
                    # Another thread reads from it: closing alone would leave the connection open.
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


def test_a_broken_download_is_resumed(served: ServedFolder, tmp_path: Path) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with axon.Worker(port=0, files=served.path).start() as address:
        proxy = BreakingProxy(address, after_bytes=150_000, times=2)
        try:
            with Connection([proxy.address]) as orchestrator:
                Downloader(orchestrator, cache, Layout.from_arrays(ARRAYS)).fetch_shard(ref, DEVICE)
        finally:
            proxy.close()
    assert proxy.left == 0
    assert ref.sha256 in cache
    # Only the piece under way when the connection broke is sent again.
    assert proxy.sent_bytes < len(content) + 3 * (1 << 16) + 3000


def test_a_download_that_breaks_every_time_is_an_error(
    served: ServedFolder, tmp_path: Path
) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with axon.Worker(port=0, files=served.path).start() as address:
        proxy = BreakingProxy(address, after_bytes=1000, times=100)
        try:
            with (
                Connection([proxy.address], give_up_s=1.0) as orchestrator,
                pytest.raises(UnreachableError, match=r"has not answered for \d+ s"),
            ):
                Downloader(orchestrator, cache, Layout.from_arrays(ARRAYS)).fetch_shard(ref, DEVICE)
        finally:
            proxy.close()


def test_a_small_cache_keeps_needed_shards(served: ServedFolder, tmp_path: Path) -> None:
    shards = [make_shard(number, 100) for number in range(4)]
    for ref, content in shards:
        (served.folder / ref.sha256).write_bytes(content)
    refs = [ref for ref, _ in shards]
    cache = ShardCache(tmp_path / "cache", int(2.5 * refs[0].size_bytes))
    with connect(served, cache) as downloader:
        for ref in refs:
            downloader.fetch_shard(ref, DEVICE, needed=[refs[0].sha256])
        assert downloader.has(refs[0])
        assert downloader.has(refs[3])
        assert sum(map(downloader.has, refs)) == 2


def test_a_shard_that_exceeds_its_size_is_refused_and_deleted(
    served: ServedFolder, tmp_path: Path
) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content + bytes(1 << 20))
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader:
        for fetch in (downloader.fetch_shard, downloader.fetch_again):
            with pytest.raises(DataError, match=f"exceeds its {ref.size_bytes} bytes"):
                fetch(ref, DEVICE)
    assert not list((tmp_path / "cache").iterdir())


def test_shards_that_exceed_the_cache_are_refused(served: ServedFolder, tmp_path: Path) -> None:
    ref, _ = make_shard()
    cache = ShardCache(tmp_path / "cache", 2 * ref.size_bytes - 1)
    with connect(served, cache) as downloader:
        assert downloader.fits([ref])
        downloader.require_room([ref])
        assert not downloader.fits([ref, ref])
        with pytest.raises(SettingError, match=r"assigned 2 shards with \d+ bytes.*--cache-bytes"):
            downloader.require_room([ref, ref])
        with pytest.raises(SettingError, match="does not fit in the cache"):
            downloader.fetch_shard(ShardRef(0, ref.sha256, 2 * ref.size_bytes, 1), DEVICE)
    assert not served.requested


def test_equal_shards_are_read_once(served: ServedFolder, tmp_path: Path) -> None:
    ref, content = make_shard()
    (served.folder / ref.sha256).write_bytes(content)
    with connect(served, ShardCache(tmp_path / "cache", 1 << 30)) as downloader:
        downloader.fetch_shard(ref, DEVICE)
        assert len(downloader.read_shards([ref] * 1000)) == 1


def test_parameters_that_exceed_the_size_of_the_model_are_refused(
    served: ServedFolder, tmp_path: Path
) -> None:
    many = {f"layer.{number}.ä": np.zeros((1, 2, 3), np.float32) for number in range(300)}
    (served.folder / "many").write_bytes(save(many))
    (served.folder / "endless").write_bytes(save(many) + bytes(1 << 20))
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    worker = axon.Worker(port=0, files=served.path)
    with worker.start() as address, Connection([address]) as orchestrator:
        downloader = Downloader(orchestrator, cache, Layout.from_arrays(many))
        assert downloader.fetch_model("many", DEVICE) is not None
        with pytest.raises(DataError, match=r"endless exceeds its \d+ bytes"):
            downloader.fetch_model("endless", DEVICE)


def test_parameters_of_another_model_are_refused(served: ServedFolder, tmp_path: Path) -> None:
    (served.folder / "mine").write_bytes(save(ARRAYS))
    (served.folder / "other").write_bytes(save({"weight": np.zeros(3, np.float32)}))
    (served.folder / "none").write_bytes(b"no parameters at all")
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with connect(served, cache) as downloader:
        mine = downloader.fetch_model("mine", DEVICE)
        assert mine is not None
        assert mine["weight"].tolist() == ARRAYS["weight"].tolist()
        assert downloader.fetch_model("gone", DEVICE) is None
        assert downloader.fetch_model("mine", DEVICE, time_is_up=lambda: True) is None
        with pytest.raises(DataError, match="weight"):
            downloader.fetch_model("other", DEVICE)
        with pytest.raises(DataError, match="not a valid safetensors file"):
            downloader.fetch_model("none", DEVICE)

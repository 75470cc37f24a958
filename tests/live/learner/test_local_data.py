"""Data on a device is read from a folder or a function, and never leaves the device."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from melisma.axon import create_identity
from melisma.errors import DataError
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.data.shards import encode_shard
from melisma.live import emulated_learners, training
from melisma.live.learner.local_data import check_local_data, read_local_data
from melisma.live.orchestrator.learner_service import METHODS
from tests.live.attacks.attacked_fleet import FEDERATED, attacked_fleet
from tests.live.attacks.attacked_fleet import total as fleet_total
from tests.live.orchestrator.served_run import TASK
from tests.live.short_run import run_task
from tests.live.tiny_task import Linear
from tests.live.tls_recorder import TlsRecorder

ROOT = str(Path(__file__).parents[3])
MARKER = np.array([0.854, 0.9, 0.7], np.float32)
"""The first numbers of each sample."""


def marked(count: int = 300, test: int = 0) -> Any:
    """Return samples of two classes that all begin with the marker; labels are the last number."""
    rng = np.random.default_rng(5)

    def draw(size: int) -> Split:
        labels = rng.integers(0, 2, size)
        samples = np.tile(np.append(MARKER, np.float32(0)), (size, 1))
        samples[:, 3] = 3.0 * labels + rng.normal(0, 0.3, size)
        return Split(samples.astype(np.float32), labels)

    return DataSet(draw(count), draw(test))


def one_pair() -> Any:
    data = marked(120).train
    return data.samples.tolist(), data.labels.tolist()


def two_pairs() -> Any:
    data = marked(120, test=30)
    return (data.train.samples, data.train.labels), (data.test.samples, data.test.labels)


def quoting() -> Any:
    raise ValueError(f"bad sample {marked(1).train.samples[0].tolist()}")


def total(shards: list[Split]) -> int:
    return sum(map(len, shards))


@pytest.mark.parametrize(
    ("function", "trained", "held"), [("one_pair", 108, 12), ("two_pairs", 120, 30)]
)
def test_a_function_of_the_owner_gives_samples(function: str, trained: int, held: int) -> None:
    source = f"{__name__}:{function}"
    shards, held_back = read_local_data(source, TASK, 0, hold_back=True)
    assert (total(shards), total(held_back)) == (trained, held)
    everything, none = read_local_data(source, TASK, 0, hold_back=False)
    assert (total(everything), none) == (120, [])
    assert max(map(len, everything)) == TASK.shard_samples
    # Shuffled, the same way each time.
    again, _ = read_local_data(source, TASK, 0, hold_back=False)
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(everything, again, strict=True))


def test_a_folder_holds_shards_or_two_arrays(tmp_path: Path) -> None:
    data = marked(120).train
    shards, arrays = tmp_path / "shards", tmp_path / "arrays"
    shards.mkdir()
    arrays.mkdir()
    for number in range(3):
        rows = np.arange(40 * number, 40 * (number + 1))
        (shards / f"{number}").write_bytes(encode_shard(data.take(rows)))
    np.save(arrays / "samples.npy", data.samples)
    np.save(arrays / "labels.npy", data.labels)
    found, _ = read_local_data(str(shards), TASK, 0, hold_back=False)
    assert [len(shard) for shard in found] == [40, 40, 40]
    found, held = read_local_data(str(arrays), TASK, 0, hold_back=True)
    assert (total(found), total(held)) == (108, 12)


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "labels.npy", np.zeros(1))
    with pytest.raises((DataError, ValueError), match="pickle"):
        read_local_data(str(tmp_path), TASK, 0, hold_back=False)


@pytest.mark.parametrize("source", ["missing", "own_missing:load", f"{__name__}:marker"])
def test_data_that_is_not_there_is_an_error_with_its_source(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match=f"local data .*{source}"):
        read_local_data(source, TASK, 0, hold_back=False)
    with pytest.raises(DataError, match="found no shards"):
        read_local_data(str(tmp_path), TASK, 0, hold_back=False)


def test_samples_that_the_model_does_not_accept_are_an_error_with_both_shapes() -> None:
    good = Split(np.zeros((3, 4), np.float32), np.zeros(3, np.int64))
    wrong = Split(np.zeros((10, 5), np.float32), np.arange(10))
    check_local_data("mine", Linear(TASK), [good, good, good.take(np.arange(0))])
    with pytest.raises(DataError) as caught:
        check_local_data("mine", Linear(TASK), [good, wrong])
    message = str(caught.value)
    assert message.startswith("local data mine: the model does not fit the data: ValueError: ")
    assert message.endswith(
        "samples are float32[5], labels int64 from 0 to 9, the model weight float32[4], bias "
        "float32[1]"
    )


def test_the_shards_with_extreme_labels_are_tried() -> None:
    tried: list[float] = []

    class Recorder(Linear):
        def score(self, parameters: Any, samples: Split) -> Any:
            tried.extend(samples.labels.tolist())
            return super().score(parameters, samples)

    samples = np.zeros((3, 4), np.float32)
    shards = [Split(samples, np.full(3, label)) for label in (4, 1, 5, 9, 2)]
    check_local_data("mine", Recorder(TASK), shards)
    assert {1, 9} <= set(tried)


class RecordingProxy:
    """Forwards connections to a port, and records what clients send."""

    def __init__(self, port: int) -> None:
        self._port, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self._sent: list[bytearray] = []
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sent(self) -> bytes:
        return b"|".join(bytes(part) for part in self._sent)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._connections += [client, server]
                record = bytearray()
                self._sent.append(record)
                for pair in ((client, server, record), (server, client, None)):
                    thread = threading.Thread(target=_forward, args=pair, daemon=True)
                    thread.start()
                    self._threads.append(thread)


def _forward(source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            if record is not None:
                record += piece
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Iterator[list[RecordingProxy]]:
    """Let the learners of a run call through a proxy, with these settings."""
    original, proxies = emulated_learners.complete_settings, list[RecordingProxy]()

    def settings(*args: Any) -> Any:
        made = original(*args)
        proxies.append(RecordingProxy(int(made[0].orchestrator[0].rpartition(":")[2])))
        fields = changes | {"orchestrator": (proxies[0].address,)}
        fields["module_path"] = (ROOT, *made[0].module_path)
        return [msgspec.structs.replace(item, **fields) for item in made]

    monkeypatch.setattr(training, "complete_settings", settings)
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.close()


def leaks(sent: bytes) -> list[str]:
    """Return the forms in which the marker was sent."""
    forms = {
        "float32": MARKER.tobytes(),
        "float64": MARKER.astype(np.float64).tobytes(),
        "big-endian": MARKER.astype(">f4").tobytes(),
        "text": b"0.85399",
        "rounded text": b"0.854",
    }
    return [name for name, form in forms.items() if form in sent]


def test_nothing_but_updates_and_sums_leaves_a_device(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaks(encode_shard(marked(3).train)) == ["float32"]
    with watched(monkeypatch, local_data=f"{__name__}:marked") as proxies:
        report = run_task(work_folder, mode="federated", data_args={"test": 0}, cycles=2)
    assert report.outcome == "finished", report.reason
    check_recording(proxies[0].sent)


def check_recording(sent: bytes) -> None:
    """Assert that a recording is complete, and that only what is agreed was sent."""
    assert leaks(sent) == []
    # All calls are there, and the updates by name.
    assert b"weight" in sent
    names = {name.decode() for name in re.findall(rb"POST /\S*?(\w+) HTTP/1\.1", sent)}
    assert {"register", "join", "poll", "upload_update", "report_evaluation"} <= names
    assert names <= {*METHODS, "enroll"}


def test_nothing_but_updates_and_sums_leaves_a_device_that_joins_with_a_folder(
    tmp_path: Path,
) -> None:
    """It joins by its command over TLS; its processes have no connection but the recorded ones."""
    data, folder = marked(300).train, tmp_path / "own-data"
    folder.mkdir()
    np.save(folder / "samples.npy", data.samples)
    np.save(folder / "labels.npy", data.labels)
    with attacked_fleet(tmp_path, learners=2, cycles=3, deadline_s=60.0, **FEDERATED) as fleet:
        orchestrator, device = fleet.home / "orchestrator", fleet.home_of("pi")
        device.mkdir(parents=True, mode=0o700)
        create_identity(device / "identity.pem")
        with TlsRecorder(
            orchestrator / "identity.pem", device / "identity.pem", fleet.invitation
        ) as recorder:
            text = str(recorder.join_string)
            process = fleet.join("pi", "", "--data", str(folder), text=text)
            anchor = fleet.anchor()
            assert anchor.at_work.wait(60)
            ports = connected_ports(process.pid)
            anchor.release()
            report = fleet.finish()
            assert process.wait() == 0, process.text
        sent = recorder.sent
    assert report.outcome == "finished", report.reason
    assert fleet_total(report, "pi").counted_visits > 0
    assert ports == {recorder.join_string.port}
    check_recording(sent)


def connected_ports(pid: int) -> set[int]:
    """Return the ports to which a process and its children are connected."""
    process = psutil.Process(pid)
    connections = [
        item
        for each in (process, *process.children(recursive=True))
        for item in each.net_connections("inet")
    ]
    return {item.raddr.port for item in connections if len(item.raddr)}


def test_an_error_on_local_data_is_not_quoted_to_the_orchestrator(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch, local_data=f"{__name__}:quoting") as proxies:
        report = run_task(work_folder, mode="federated", data_args={"test": 0}, cycles=2)
    assert report.outcome != "finished"
    assert b"DataError on its local data" in proxies[0].sent
    assert leaks(proxies[0].sent) == []
    (log, *_) = sorted((work_folder / "run" / "logs").glob("*.log"))
    assert "bad sample" in log.read_text()

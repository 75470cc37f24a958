"""Files by GET, whole or in part, with `fetch` and with any HTTP client."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from melisma import axon
from melisma.errors import RefusedError, UnauthorizedError

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "whole").write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"not served")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    names = {"whole": folder / "whole", "empty": folder / "empty", "a b/c": folder / "whole"}
    names["missing"] = folder / "nothing"
    with axon.Worker(port=0, files=lambda name, _: names.get(name)).start() as address:
        yield address


@pytest.mark.parametrize("start", [0, 1, 65535, 65536, len(CONTENT) - 1])
def test_a_download_resumes_at_any_byte(address: str, start: int) -> None:
    with axon.connect(address) as worker:
        assert b"".join(axon.fetch(worker, "whole", start)) == CONTENT[start:]


def test_a_download_from_the_end_is_empty(address: str) -> None:
    with axon.connect(address) as worker:
        assert list(axon.fetch(worker, "whole", len(CONTENT))) == []
        assert list(axon.fetch(worker, "empty")) == []
        assert b"".join(axon.fetch(worker, "whole")) == CONTENT


def test_file_names_may_contain_any_characters(address: str) -> None:
    with axon.connect(address) as worker:
        assert b"".join(axon.fetch(worker, "a b/c")) == CONTENT


@pytest.mark.parametrize("name", ["secret", "../secret", "missing", ""])
def test_an_unknown_file_is_refused(address: str, name: str) -> None:
    with axon.connect(address) as worker, pytest.raises(RefusedError, match="no file"):
        list(axon.fetch(worker, name))


def test_a_worker_without_files_refuses_downloads() -> None:
    bare = axon.Worker(port=0)
    with bare.start() as address, axon.connect(address) as worker, pytest.raises(RefusedError):
        list(axon.fetch(worker, "whole"))


def test_connections_are_reused(address: str) -> None:
    with axon.connect(address) as worker:
        for _ in range(3):
            list(axon.fetch(worker, "whole"))
        assert len(worker._connections.socket_pool._idle) == 1


def test_an_aborted_download_can_be_resumed(address: str) -> None:
    with axon.connect(address) as worker:
        pieces = axon.fetch(worker, "whole")
        first = next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        assert CONTENT.startswith(bytes(first))
        assert b"".join(axon.fetch(worker, "whole", len(first))) == CONTENT[len(first) :]


def test_downloads_need_the_token(folder: Path) -> None:
    worker = axon.Worker(port=0, token="open-sesame-1234", files=lambda *_: folder / "whole")
    with worker.start() as address:
        with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
            list(axon.fetch(stranger, "whole"))
        with axon.connect(address, token="open-sesame-1234") as friend:
            assert b"".join(axon.fetch(friend, "whole")) == CONTENT


def test_any_http_client_can_download(address: str) -> None:
    with urllib.request.urlopen(f"{address}/files/whole") as answer:
        assert answer.read() == CONTENT
        assert answer.headers["accept-ranges"] == "bytes"
    part = urllib.request.Request(f"{address}/files/whole", headers={"range": "bytes=10-19"})
    with urllib.request.urlopen(part) as answer:
        assert answer.status == 206
        assert answer.headers["content-range"] == f"bytes 10-19/{len(CONTENT)}"
        assert answer.read() == CONTENT[10:20]
    beyond = urllib.request.Request(f"{address}/files/whole", headers={"range": "bytes=999999-"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(beyond)
    assert caught.value.code == 416
    caught.value.close()

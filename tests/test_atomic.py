import os
from pathlib import Path
from stat import S_ISDIR
from threading import Thread

import pytest

from melisma.atomic import make_durable_folder, write_atomic
from melisma.runs.svg import Picture

OLD, NEW = b"old content", b"new content"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(OLD)
    return path


@pytest.mark.parametrize("content", [b"", b"\x00\xff", "text, \N{GREEK SMALL LETTER PI}"])
def test_it_writes_bytes_and_text_and_returns_the_path(
    tmp_path: Path, content: bytes | str
) -> None:
    path = write_atomic(tmp_path / "new", content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(file, NEW)
    assert file.read_bytes() == OLD
    assert list(file.parent.iterdir()) == [file]


def test_content_is_on_disk_before_it_gets_its_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def sync(number: int) -> None:
        seen.append((S_ISDIR(os.fstat(number).st_mode), file.read_bytes()))

    monkeypatch.setattr("os.fsync", sync)
    write_atomic(file, NEW)
    assert seen == [(False, OLD), (True, NEW)]
    assert file.read_bytes() == NEW


def test_the_name_of_each_new_folder_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    monkeypatch.setattr("os.fsync", lambda number: synced.add(os.fstat(number).st_ino))
    folder = make_durable_folder(tmp_path / "new" / "below")
    assert synced == {path.stat().st_ino for path in (tmp_path, tmp_path / "new")}
    synced.clear()
    assert make_durable_folder(folder) == folder
    assert synced == set()
    write_atomic(folder / "further" / "file", NEW)
    assert folder.stat().st_ino in synced


def test_threads_that_write_one_file_leave_the_content_of_one_of_them(file: Path) -> None:
    contents = [bytes([number]) * 100_000 for number in range(8)]
    threads = [Thread(target=write_atomic, args=(file, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_bytes() in contents
    assert list(file.parent.iterdir()) == [file]


def test_pictures_are_saved_atomically(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, str]] = []
    monkeypatch.setattr("melisma.runs.svg.write_atomic", lambda *each: written.append(each))
    picture = file.with_suffix(".svg")
    Picture("<svg/>").save(picture)
    assert written == [(picture, "<svg/>")]


def test_a_file_may_be_for_its_owner_alone(tmp_path: Path) -> None:
    path = write_atomic(tmp_path / "secret", b"x", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomic(path, b"y", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600

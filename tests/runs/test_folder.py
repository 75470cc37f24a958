import errno
import os
from pathlib import Path

import pytest

from melisma.errors import DataError
from melisma.runs.folder import naming_kept_files


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (errno.EROFS, "cannot use .*journal.db: Read-only file system; kept in .*: trace.jsonl; "),
        (errno.EACCES, "make .* readable and writable for this user, or copy it, and use melisma"),
        (errno.EIO, "cannot use .*journal.db: Input/output error"),
        (errno.ENOSPC, "no space is left on the disk"),
    ],
)
def test_an_error_of_the_disk_names_the_file_and_what_to_do(
    tmp_path: Path, code: int, problem: str
) -> None:
    for name in ("journal.db", "trace.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=problem), naming_kept_files(tmp_path):
        raise OSError(code, errno_text(code), str(tmp_path / "journal.db"))


def test_an_input_output_error_of_a_full_disk_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melisma.runs.folder._free_bytes", lambda _folder: 0)
    with pytest.raises(DataError, match="no space is left"), naming_kept_files(tmp_path):
        raise OSError(errno.EIO, errno_text(errno.EIO), str(tmp_path / "journal.db"))


def test_errors_of_other_files_are_not_those_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), naming_kept_files(tmp_path / "run"):
        (tmp_path / "missing").read_bytes()


def errno_text(code: int) -> str:
    return os.strerror(code)

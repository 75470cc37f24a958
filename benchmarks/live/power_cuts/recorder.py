"""The library that logs changes of files: compiles it, and reads its logs."""

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("recorder.c")
COMPILERS: Final = ("cc", "gcc", "clang")
HEAD: Final = struct.Struct("7Q")


class Change(NamedTuple):
    """One record of a log; `operation` is a letter of `enum operation`.

    `offset` is the thread of a sync, and the new size of a file that was truncated.
    """

    time_ns: int
    operation: str
    inode: int
    offset: int
    path: str
    second: str
    data: bytes


def find_compiler() -> str | None:
    """Return the path of a C compiler; None if there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


@dataclass(frozen=True)
class Recorder:
    """The library, compiled in a folder that also has the logs of one start of the machine."""

    folder: Path

    @property
    def _library(self) -> Path:
        return self.folder / "recorder.so"

    @property
    def _logs(self) -> Path:
        return self.folder / "logs"

    def compile(self) -> None:
        """Compile the library; raise `RuntimeError` if there is no compiler."""
        compiler = find_compiler()
        if compiler is None:
            raise RuntimeError(f"no C compiler found: install one of {', '.join(COMPILERS)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["-shared", "-fPIC", "-O1", "-o", str(self._library)]
        subprocess.run([compiler, *options, str(SOURCE), "-ldl", "-lpthread"], check=True)

    def restart(self) -> None:
        """Delete the logs."""
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir()

    def variables(self, recorded: Path) -> dict[str, str]:
        """Return the environment variables of a process whose changes below a folder are logged."""
        return {
            "LD_PRELOAD": str(self._library),
            "RECORDED_FOLDER": str(recorded.resolve()),
            "RECORDER_LOGS": str(self._logs),
        }

    def changes(self) -> Iterator[Change]:
        """Yield the changes of all processes, in order."""
        yield from merge(*map(_read_log, sorted(self._logs.iterdir())), key=lambda it: it.time_ns)


def _read_log(path: Path) -> Iterator[Change]:
    """Yield the changes of one process; the last one may be incomplete if it was killed."""
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            time_ns, operation, inode, offset, *sizes = HEAD.unpack(head)
            content = file.read(sum(sizes))
            if len(content) < sum(sizes):
                return
            first, second = sizes[0], sizes[0] + sizes[1]
            yield Change(
                time_ns,
                chr(operation),
                inode,
                offset,
                content[:first].decode(),
                content[first:second].decode(),
                content[second:],
            )

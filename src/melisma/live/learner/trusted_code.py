"""The code of a task that the owner of a device allows: modules by name, or the task's bundle.

A `module:name` comes from the orchestrator. It is imported only if the owner allowed its module
(`--allow-module`), or trusts the code of the orchestrator (`--trust-code`) and the module is in the
bundle of the task. What is called must be defined in such a module itself: an allowed module may
have imported anything.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Protocol

from melisma.errors import DataError, SettingError
from melisma.live.code_bundle import (
    MAX_BUNDLE_BYTES,
    MAX_BUNDLE_FILES,
    MODULE_FILE,
    bundle_name,
)
from melisma.live.protocol import BundleRef
from melisma.private_files import make_private_folder, write_private
from melisma.user_code import (
    DEVICE_SEARCHED,
    IMPORT_PATH,
    import_function,
    import_object,
    is_import_path,
)

MAX_BUNDLES: Final = 4
"""Bundles that a device keeps; the one that was not used for the longest time is deleted first."""
BUNDLE_FOLDER: Final = re.compile(r"[0-9a-f]{64}|\.part-.*")
INVALID_ZIP = (
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError),
    *(ValueError, OverflowError, IndexError),
)


class Files(Protocol):
    """A source of files, such as `Connection`."""

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        """Yield the bytes of a file."""


def permit_model(
    name: str,
    allowed: Iterable[str],
    bundle: BundleRef | None,
    fetch_into: tuple[Files, Path] | None,
) -> None:
    """Raise `SettingError` unless the model of a task is built in or allowed.

    With `fetch_into`, the owner trusts the code of the orchestrator: the bundle is fetched from
    there into that folder, and its modules are allowed, too. Nothing is imported before the name
    of its module was checked.
    """
    if not is_import_path(name):
        return
    match, modules = IMPORT_PATH.fullmatch(name), tuple(allowed)
    if match is None:
        raise SettingError(f"model is {name!r:.200}; expected package.module:name")
    if not _is_allowed(match[1], modules):
        if fetch_into is None:
            raise SettingError(_refusal(name, match[1], bundle))
        if bundle is None:
            raise SettingError(
                f"model {name}: the orchestrator offers no source of it; install "
                f"{match[1].partition('.')[0]} on this device and use --allow-module {match[1]}"
            )
        folder = install_bundle(bundle, *fetch_into)
        own = _bundle_modules(folder)
        if not _is_allowed(match[1], own):
            raise SettingError(f"model {name}: the bundle of the task does not contain {match[1]}")
        sys.path.append(str(folder))
        for module in own:
            _check_origin(module, folder)
        modules += own
    _check_definition(name, modules)


def import_allowed(key: str, name: str, allowed: Iterable[str]) -> Callable[..., Any]:
    """Import a function that the owner of this device named, from a module that is allowed."""
    module = name.partition(":")[0]
    if not _is_allowed(module, allowed):
        raise SettingError(
            f"{key} {name}: {module} is not allowed on this device; start it with "
            f"--allow-module {module}"
        )
    return import_function(key, name, DEVICE_SEARCHED)


def defining_modules(name: str, key: str = "model") -> tuple[str, ...]:
    """Return the modules that define code of this machine's own files; none if it is built in.

    `key` is the one that names it, for errors.
    """
    if not is_import_path(name):
        return ()
    origin = getattr(import_object(key, name), "__module__", None)
    return tuple(dict.fromkeys([name.partition(":")[0], *([origin] if origin else [])]))


def _refusal(name: str, module: str, bundle: BundleRef | None) -> str:
    trust = "--trust-code to run the source that the orchestrator offers, or with "
    return (
        f"model {name} is code of the task, which this device does not run: start it with "
        f"{trust if bundle is not None else ''}--allow-module {module} if {module} is installed "
        "here and you trust it"
    )


def _is_allowed(module: str, allowed: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _check_definition(name: str, modules: tuple[str, ...]) -> None:
    """Import an allowed object; raise `SettingError` if another module has defined it."""
    origin = getattr(import_object("model", name, DEVICE_SEARCHED), "__module__", None)
    if not isinstance(origin, str) or not _is_allowed(origin, modules):
        raise SettingError(
            f"model {name} is defined in {origin}, which is not allowed: name it there, or start "
            f"the device with --allow-module {origin}"
        )


def _check_origin(module: str, folder: Path) -> None:
    """Raise `SettingError` if an installed module hides one of the bundle."""
    spec = importlib.util.find_spec(module)
    locations = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    if not any(Path(each).is_relative_to(folder) for each in locations):
        raise SettingError(
            f"module {module} of the task's bundle is hidden by one that is installed on this "
            "device: give it another name"
        )


def _bundle_modules(folder: Path) -> tuple[str, ...]:
    return tuple(sorted({path.stem for path in folder.iterdir() if path.stem != "__pycache__"}))


def install_bundle(bundle: BundleRef, source: Files, folder: Path) -> Path:
    """Fetch a bundle, check its hash, extract it below `folder`, and return the new folder.

    The latest `MAX_BUNDLES` are kept there, unfinished ones of killed processes included.
    """
    target = make_private_folder(folder) / bundle.sha256
    if not target.is_dir():
        _extract_into(target, _fetch(bundle, source))
    os.utime(target)
    bundles = [path for path in folder.iterdir() if BUNDLE_FOLDER.fullmatch(path.name)]
    bundles.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for old in bundles[MAX_BUNDLES:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def _extract_into(target: Path, content: bytes) -> None:
    """Extract a bundle; the folder gets its name when it is complete."""
    part = Path(mkdtemp(prefix=".part-", dir=target.parent))
    try:
        extract_bundle(content, part)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _fetch(bundle: BundleRef, source: Files) -> bytes:
    content = bytearray()
    for piece in source.fetch(bundle_name(bundle.sha256)):
        content += piece
        if len(content) > bundle.size_bytes:
            raise DataError(f"the bundle of the task exceeds its {bundle.size_bytes} bytes")
    actual = hashlib.sha256(content).hexdigest()
    if actual != bundle.sha256:
        raise DataError(f"the bundle of the task has SHA-256 {actual}; expected {bundle.sha256}")
    return bytes(content)


def extract_bundle(content: bytes, folder: Path) -> None:
    """Write the files of a bundle; raise `DataError` for anything but Python files inside it."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            files = dict(_read_files(archive))
    except INVALID_ZIP as error:
        raise DataError(f"the bundle of the task is not a valid zip file: {error}") from None
    for name, source in files.items():
        path = folder / name
        make_private_folder(path.parent)
        write_private(path, source)


def _read_files(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    entries, left = archive.infolist(), MAX_BUNDLE_BYTES
    if len(entries) > MAX_BUNDLE_FILES or len({entry.filename for entry in entries}) < len(entries):
        raise DataError(
            f"the bundle of the task has {len(entries)} files, some perhaps twice; expected at "
            f"most {MAX_BUNDLE_FILES}, each once"
        )
    for entry in entries:
        mode = entry.external_attr >> 28
        if not MODULE_FILE.fullmatch(entry.filename) or mode not in (0, 0o10):
            raise DataError(
                f"the bundle of the task contains {entry.filename!r:.100}; expected Python files "
                "with relative paths only"
            )
        with archive.open(entry) as file:
            source = file.read(left + 1)
        left -= len(source)
        if left < 0:
            raise DataError(f"the files of the task's bundle exceed {MAX_BUNDLE_BYTES} bytes")
        yield entry.filename, source

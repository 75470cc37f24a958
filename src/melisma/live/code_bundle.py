"""The source of a task's own model as one zip file, for devices whose owners trust it.

It holds the module that the task names and the modules beside it that this one imports, Python
files only. The same files give the same bytes.
"""

import ast
import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

from melisma.errors import SettingError
from melisma.user_code import IMPORT_PATH

MAX_BUNDLE_BYTES: Final = 16 << 20
"""The most bytes of a bundle, and of its files together."""
MAX_BUNDLE_FILES: Final = 1000
MODULE_FILE: Final = re.compile(r"[A-Za-z_]\w*(/[A-Za-z_]\w*)*\.py", re.ASCII)
"""The names that files of a bundle may have: no absolute paths, and none that lead outside."""
FILE_TIME: Final = (1980, 1, 1, 0, 0, 0)


class CodeBundle:
    """The bytes of a bundle, and its hash."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def file_name(self) -> str:
        """The name under which devices download it."""
        return bundle_name(self.sha256)


def bundle_name(sha256: str) -> str:
    """Return the name under which devices download the bundle with this hash."""
    return f"bundle-{sha256}.zip"


def collect_bundle(name: str, folders: Sequence[str]) -> CodeBundle | None:
    """Return the bundle of a `module:name`; None if its module is in none of the folders.

    Such a module is installed, or built in. Raises `SettingError` if the source is too large.
    """
    match = IMPORT_PATH.fullmatch(name)
    if match is None:
        return None
    files = _reachable_files([*map(Path, folders)], match[1].partition(".")[0])
    return _pack(name, files) if files else None


def _reachable_files(folders: Sequence[Path], module: str) -> dict[str, Path]:
    """Return the files of a top-level module, and of those in the folders that they import.

    Each is found in the first folder that has it; keys are names inside the bundle.
    """
    waiting, seen, reachable = [module], set[str](), dict[str, Path]()
    while waiting:
        top = waiting.pop()
        if top in seen:
            continue
        seen.add(top)
        for folder in folders:
            files = _module_files(folder, top)
            reachable |= {path.relative_to(folder).as_posix(): path for path in files}
            if files:
                waiting += [name for path in files for name in _imported_modules(path)]
                break
    return reachable


def _module_files(folder: Path, module: str) -> set[Path]:
    """Return the files of a top-level module or package; none if another one is imported."""
    package, file = folder / module, folder / f"{module}.py"
    if not _is_imported_from(folder, module):
        return set()
    if file.is_file() and not (package / "__init__.py").is_file():
        return {file}
    return {
        path
        for path in package.rglob("*.py")
        if path.is_file() and MODULE_FILE.fullmatch(path.relative_to(folder).as_posix())
    }


def _is_imported_from(folder: Path, module: str) -> bool:
    """Whether a module is not hidden by one that is installed or built in."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return True
    locations = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(Path(each).is_relative_to(folder) for each in locations)


def _imported_modules(path: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports, also inside functions."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # It cannot be imported, either.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _pack(name: str, paths: Mapping[str, Path]) -> CodeBundle:
    files = {file_name: path.read_bytes() for file_name, path in paths.items()}
    size = sum(map(len, files.values()))
    if size > MAX_BUNDLE_BYTES or len(files) > MAX_BUNDLE_FILES:
        raise SettingError(
            f"the source of {name} is too large for devices: {len(files)} files of "
            f"{size} bytes; move it to a folder of its own, with at most {MAX_BUNDLE_FILES} "
            f"files of {MAX_BUNDLE_BYTES} bytes"
        )
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file_name in sorted(files):
            entry = zipfile.ZipInfo(file_name, FILE_TIME)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[file_name], zipfile.ZIP_DEFLATED)
    return CodeBundle(buffer.getvalue())

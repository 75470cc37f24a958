"""Code of the user, imported by `package.module:name`: models, data, schemes and more."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from melisma.errors import SettingError, suggest

PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
OWN_FOLDERS = (Path(__file__).parent, *map(Path, map(sysconfig.get_path, ("stdlib", "scripts"))))
"""The folders of this package, of Python, and of commands."""
TASK_SEARCHED = "the folder of the task file, the current folder, installed packages"
DEVICE_SEARCHED = "the folder in which melisma join was started, installed packages"
IMPORT_PATH = re.compile(r"(\w+(?:\.\w+)*):(\w+)")


def is_import_path(name: str) -> bool:
    """Whether a name refers to code of the user rather than to a built-in."""
    return ":" in name


def add_module_path(
    file: str | Path | None = None, others: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Add the folder of the task's file and the current folder to `sys.path`, and return both.

    `others` are folders that come before these.
    """
    folders = [Path(file).resolve().parent] if file is not None else []
    path = tuple(dict.fromkeys(map(str, [*others, *folders, Path.cwd()])))
    sys.path += [folder for folder in path if folder not in sys.path]
    return path


def import_object(key: str, name: str, searched: str = TASK_SEARCHED) -> Any:
    """Import the object of that name; `SettingError` states the key of the task and the cause.

    `searched` names the places for modules, in the message about one that is missing.
    """
    match = IMPORT_PATH.fullmatch(name)
    if match is None:
        raise SettingError(f"{key} is {name!r}; expected package.module:name")
    module_name, attribute = match.groups()
    try:
        module = import_module(module_name)
    except Exception as error:  # The module is the user's.
        hint = f"; searched: {searched}" if _is_module_missing(error, module_name) else ""
        raise SettingError(f"{key} {name}: {describe_error(error)}{hint}") from error
    if not hasattr(module, attribute):
        defined = _defined_names(module)
        expected = f"; {suggest(attribute, defined)}" if defined else ""
        raise SettingError(f"{key} {name}: {module_name} has no {attribute}{expected}")
    return getattr(module, attribute)


def import_function(key: str, name: str, searched: str = TASK_SEARCHED) -> Callable[..., Any]:
    """Import the function or class of that name, as `import_object` does."""
    target: Callable[..., Any] = import_object(key, name, searched)
    if not callable(target):
        raise SettingError(
            f"{key} {name} is a {type(target).__name__}; expected something that can be called"
        )
    return target


def call_user_code(key: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Import the object of that name, call it, and return the result."""
    target = import_function(key, name)
    try:
        return target(*args, **kwargs)
    except Exception as error:  # The code is the user's.
        given = kwargs or "no arguments"
        raise SettingError(f"{key} {name} with {given}: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Describe an error in the user's code: type, message, and the last line of that code."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_installed(frame.filename)]
    location = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    hint = "; pip install 'melisma[torch]'" if getattr(error, "name", "") == "torch" else ""
    return f"{type(error).__name__}: {message}{location}{hint}"


def is_installed(file: str | Path) -> bool:
    """Whether a file or folder is of Python, of an installed package, or of this one."""
    path = Path(file)
    is_package = not PACKAGE_FOLDERS.isdisjoint(path.parts)
    return str(file).startswith("<") or is_package or any(map(path.is_relative_to, OWN_FOLDERS))


def _defined_names(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _is_module_missing(error: Exception, module: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]

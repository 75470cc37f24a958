"""Models and data of the user, imported by `package.module:name`."""

import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from melisma.errors import SettingError

# Code of this package, of Python and of installed packages.
INSTALLED_PREFIXES = ("<", str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix)
SEARCHED = "; it is looked for beside the task's file, in this folder, and among what is installed"
IMPORT_PATH = re.compile(r"(\w+(?:\.\w+)*):(\w+)")


def is_import_path(name: str) -> bool:
    """Whether a name refers to code of the user rather than to a built-in."""
    return ":" in name


def import_object(what: str, name: str) -> Any:
    """Import the object of that name; `SettingError` names the key of the task and the cause."""
    form = IMPORT_PATH.fullmatch(name)
    if form is None:
        raise SettingError(f"{what} is {name!r}; expected package.module:name")
    module, attribute = form.groups()
    try:
        found = import_module(module)
    except Exception as error:  # The module is the user's.
        hint = SEARCHED if _is_module_missing(error, module) else ""
        raise SettingError(f"{what} {name}: {describe_error(error)}{hint}") from error
    if not hasattr(found, attribute):
        raise SettingError(f"{what} {name}: {module} has no {attribute}")
    return getattr(found, attribute)


def call_user_code(what: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Import the object of that name, call it, and return the result."""
    maker = import_object(what, name)
    if not callable(maker):
        raise SettingError(f"{what} {name} is a {type(maker).__name__}; it cannot be called")
    try:
        return maker(*args, **kwargs)
    except Exception as error:  # What it does is the user's.
        said = kwargs or "no arguments"
        raise SettingError(f"{what} {name} with {said}: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Describe an error in the user's code: type, message, and the last line of that code."""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(INSTALLED_PREFIXES)]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    hint = "; pip install 'melisma[torch]'" if getattr(error, "name", "") == "torch" else ""
    return f"{type(error).__name__}: {said}{place}{hint}"


def _is_module_missing(error: Exception, module: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]

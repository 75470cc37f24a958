"""What a task names by `package.module:name`: imported from where Python looks for modules."""

import re
from importlib import import_module
from typing import Any

from melisma.errors import SettingError

OWN = re.compile(r"(\w+(?:\.\w+)*):(\w+)")


def is_own(name: str) -> bool:
    """Whether a name means something of the user's rather than one that we ship."""
    return ":" in name


def named(what: str, name: str) -> Any:
    """The object of that name; `SettingError` says what the task calls it and what is missing."""
    form = OWN.fullmatch(name)
    if form is None:
        raise SettingError(f"{what} is {name!r}; expected package.module:name")
    module, attribute = form.groups()
    try:
        found = import_module(module)
    except (ImportError, SyntaxError) as error:
        raise SettingError(f"{what} {name}: {error}") from error
    if not hasattr(found, attribute):
        raise SettingError(f"{what} {name}: {module} has no {attribute}")
    return getattr(found, attribute)


def made(what: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """What the object of that name returns for these arguments."""
    maker = named(what, name)
    if not callable(maker):
        raise SettingError(f"{what} {name} is a {type(maker).__name__}; it cannot be called")
    try:
        return maker(*args, **kwargs)
    except (TypeError, ValueError) as error:
        said = kwargs or "no arguments"
        raise SettingError(f"{what} {name} with {said}: {error}") from error

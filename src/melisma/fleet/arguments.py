"""Settings that are given in Python are checked like those of the files, with the same messages."""

from collections.abc import Mapping
from functools import cache
from os import PathLike, fspath
from typing import Any, cast

import msgspec

from melisma.errors import SettingError
from melisma.fleet.files.toml_file import convert


class RecordType(msgspec.StructMeta):
    """The type of records that check keys, types and ranges when they are made in Python."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:  # noqa: N805 - the class of a metaclass
        """Return a record of these settings; `SettingError` names the class and the key."""
        if args:
            first = cls.__struct_fields__[0]
            raise SettingError(
                f"{cls.__name__}: {args[0]!r:.60} has no name; name each setting, such as "
                f"{cls.__name__}({first}=...)"
            )
        record = cast("type[msgspec.Struct]", cls)
        return convert(cls.__name__, to_plain(settings), record, top="")


def to_plain(value: Any) -> Any:
    """Return lists, numbers and paths as the types that a TOML file has; other values as is."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [to_plain(item) for item in value]
    if isinstance(value, PathLike):
        return fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def check_arguments(source: str, types: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise `SettingError` unless each value has the type of its name.

    `source` is the function or class that they were given to.
    """
    record = _record(tuple(types.items()))
    convert(source, to_plain({name: values[name] for name in types}), record, top="")


@cache
def _record(types: tuple[tuple[str, Any], ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Arguments", types)


def describe(value: object) -> str:
    """Return a value of a wrong type in an error message."""
    return f"{value!r:.60} ({type(value).__name__})"

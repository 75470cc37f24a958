"""TOML files read into typed records, with errors that name the file and the key."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from melisma.errors import SettingError, suggest

Record = TypeVar("Record", bound=msgspec.Struct)
TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text in quotes",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
BOUND_WORDS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}


def read_toml(path: str | Path, record: type[Record]) -> Record:
    """The file's contents as `record`; all that is wrong with it is a `SettingError`."""
    text = read_text(path)
    try:
        found = tomllib.loads(text)
    # Endless digits and endless brackets are no TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not TOML: {error}") from None
    return convert(str(path), found, record)


def convert(what: str, found: Any, record: type[Record]) -> Record:
    """What was said as `record`; `SettingError` says of what, at which key, and what is right."""
    try:
        return msgspec.convert(found, record)
    except msgspec.ValidationError as error:
        raise SettingError(f"{what}: {_describe(str(error), record, found)}") from None


def read_text(path: str | Path) -> str:
    """What stands in a file; `SettingError` where that is no text."""
    try:
        # Some editors begin a file with a byte order mark.
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: not text in UTF-8") from None


def _describe(message: str, record: type[msgspec.Struct], found: Any) -> str:
    """`msgspec`'s message with the key first, what was found there, and what was expected."""
    said, at, place = message.rpartition(" - at `$")
    said, place = (said, place) if at else (message, "")
    kinds: Sequence[inspect.Type] = [inspect.type_info(record)]
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        kinds = _types_at(kinds, key)
        found = found[key or int(number)]
    where = place.removesuffix("`").removeprefix(".") or "top level"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        return f"{where}: unknown key {unknown[1]}; {_suggestion(unknown[1], kinds)}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{where}: {missing[1]} is missing"
    if said.startswith("Invalid enum value"):
        values = [value for kind in kinds for value in getattr(kind, "values", ())]
        return f"{where}: {found!r:.60}; {suggest(found, values)}"
    if expected := re.fullmatch(r"Expected `([\w |]+)`(?:, got .*| ([<>]=?) (.*))", said):
        named = [TYPE_WORDS[kind] for kind in expected[1].split(" | ") if kind in TYPE_WORDS]
        bound = _describe_bound(expected[2], float(expected[3])) if expected[2] else ""
        return f"{where}: {found!r:.60}; expected {' or '.join(named)}{bound}"
    return f"{where}: {said}"


def _describe_bound(sign: str, limit: float) -> str:
    """The limit in words; one that only keeps quotients in range is as good as 0."""
    least = sign == ">=" and 0 < limit < 1e-20
    return " above 0" if least else f" {BOUND_WORDS[sign]} {limit:.16g}"


def _types_at(kinds: Sequence[inspect.Type], key: str) -> Sequence[inspect.Type]:
    """What may stand at a key of a table, or, without a key, in a list."""
    within = [field.type for field in _fields(kinds) if field.encode_name == key]
    items = [kind.item_type for kind in kinds if isinstance(kind, inspect.VarTupleType)]
    return [one for each in within or items for one in getattr(each, "types", (each,))]


def _suggestion(unknown: str, kinds: Sequence[inspect.Type]) -> str:
    return suggest(unknown, [field.encode_name for field in _fields(kinds)])


def _fields(kinds: Sequence[inspect.Type]) -> list[inspect.Field]:
    tables = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    return [field for table in tables for field in table.fields]

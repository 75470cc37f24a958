"""Reading of TOML files into typed records, with errors that name the file and the key."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from melisma.backports import tomllib
from melisma.errors import SettingError, nearest_word, suggest

Record = TypeVar("Record", bound=msgspec.Struct)
TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text in quotes",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
# By the last part of a key.
UNITS = {"s": "seconds", "bps": "bit/s", "bytes": "bytes", "j": "joules", "hz": "hertz"}
# Each file has one table at its top level.
FILE_TABLES = {"task", "fleet"}
BOUND_WORDS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}


def read_toml(path: str | Path, record: type[Record]) -> Record:
    """Read a file as `record`; raise SettingError if it is missing, no TOML, or invalid."""
    text = read_text(path)
    try:
        content = tomllib.loads(text)
    # Too many digits and too deep nesting are no TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not TOML: {error}") from None
    _check_kind(str(path), content, record)
    return convert(str(path), content, record)


def _check_kind(source: str, content: dict[str, Any], record: type[msgspec.Struct]) -> None:
    """Raise SettingError if a task file is read as a fleet file, or the reverse."""
    expected = FILE_TABLES.intersection(record.__struct_fields__)
    found = FILE_TABLES.intersection(content)
    if expected and found and not expected & found:
        raise SettingError(
            f"{source}: found [{found.pop()}], expected [{expected.pop()}]; are TASK.toml and "
            "--fleet FLEET.toml swapped?"
        )


def convert(source: str, content: Any, record: type[Record], top: str = "top level") -> Record:
    """Convert built-in types to `record`; a `SettingError` names the source and the key.

    `top` stands for the key of an error that concerns the whole record.
    """
    try:
        return msgspec.convert(content, record)
    except msgspec.ValidationError as error:
        where, problem = _describe(str(error), record, content)
        raise SettingError(": ".join(filter(None, (source, where or top, problem)))) from None


def read_text(path: str | Path) -> str:
    """Read a text file; raise SettingError if it cannot be read or is not UTF-8."""
    try:
        # Some editors write a byte order mark.
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: not text in UTF-8") from None


def _describe(message: str, record: type[msgspec.Struct], content: Any) -> tuple[str, str]:
    """Rewrite a message of `msgspec` as key, and value found and value expected."""
    problem, at, path = message.rpartition(" - at `$")
    problem, path = (problem, path) if at else (message, "")
    types: Sequence[inspect.Type] = [inspect.type_info(record)]
    value, where = content, ""
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        types = _types_at(types, key)
        value = value[key or int(number)]
        where += f".{key}" if key else f"[{_name_of(value) or number}]"
    where = where.removeprefix(".")
    return where, _describe_problem(problem, where, types, value)


def _describe_problem(problem: str, where: str, types: Sequence[inspect.Type], value: Any) -> str:
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem):
        return f"unknown key {unknown[1]}; {_suggestion(unknown[1], types)}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return f"{missing[1]} is missing"
    if problem.startswith("Invalid enum value"):
        choices = [choice for kind in types for choice in getattr(kind, "values", ())]
        return f"{value!r:.60}; {suggest(value, choices)}"
    if expected := re.fullmatch(r"Expected `([\w |]+)`(?:, got .*| ([<>]=?) (.*))", problem):
        if isinstance(value, dict) and _is_table_list(types):
            table = re.sub(r"\[.*?\]", "", where)
            return f"a single table; write [[{table}]] with double brackets"
        words = [TYPE_WORDS[kind] for kind in expected[1].split(" | ") if kind in TYPE_WORDS]
        bound = _describe_bound(expected[2], float(expected[3])) if expected[2] else ""
        return f"{value!r:.60}; expected {' or '.join(words)}{bound}"
    return problem


def _name_of(table: Any) -> str:
    """Return the name that a table has, or an empty string."""
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) and name.strip() and name.isprintable() else ""


def _describe_bound(sign: str, limit: float) -> str:
    """Return the limit in words; one that only keeps quotients finite is shown as 0."""
    tiny = sign == ">=" and 0 < limit < 1e-20
    return " above 0" if tiny else f" {BOUND_WORDS[sign]} {limit:.16g}"


def _types_at(types: Sequence[inspect.Type], key: str) -> Sequence[inspect.Type]:
    """Return the types allowed at a key of a table or, without a key, in a list."""
    values = [field.type for field in _fields(types) if field.encode_name == key]
    items = [kind.item_type for kind in types if isinstance(kind, inspect.VarTupleType)]
    return [member for kind in values or items for member in getattr(kind, "types", (kind,))]


def _suggestion(unknown: str, types: Sequence[inspect.Type]) -> str:
    known = [field.encode_name for field in _fields(types)]
    near = nearest_word(unknown, known)
    suffix = near.rpartition("_")[2] if near else ""
    if suffix not in UNITS or unknown.endswith(f"_{suffix}"):
        return suggest(unknown, known)
    return f"did you mean {near} (in {UNITS[suffix]})?"


def _is_table_list(types: Sequence[inspect.Type]) -> bool:
    lists = [kind for kind in types if isinstance(kind, inspect.VarTupleType)]
    return any(isinstance(kind.item_type, inspect.StructType) for kind in lists)


def _fields(types: Sequence[inspect.Type]) -> list[inspect.Field]:
    tables = [kind for kind in types if isinstance(kind, inspect.StructType)]
    return [field for table in tables for field in table.fields]

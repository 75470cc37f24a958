"""TOML files read into typed records, with errors that name the file and the key."""

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import msgspec

from melisma.errors import SettingError

Record = TypeVar("Record", bound=msgspec.Struct)


def read(path: str | Path, record: type[Record]) -> Record:
    """The file's contents as `record`; all that is wrong with it is a `SettingError`."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise SettingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: not text in UTF-8") from None
    try:
        return msgspec.convert(tomllib.loads(text), record)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise SettingError(f"{path}: {_readable(str(error), record)}") from None


def _readable(message: str, record: type[msgspec.Struct]) -> str:
    """`msgspec`'s message with the key first, as the file spells it."""
    said, _, place = message.partition(" - at `$")
    key = place.removesuffix("`").removeprefix(".") or "top level"
    key = re.sub(r"\[\.\.\.\]", "", key)
    said = said.replace("`", "")
    unknown = re.fullmatch(r"Object contains unknown field (.*)", said)
    if unknown:
        close = get_close_matches(unknown[1], sorted(_keys(record)), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{key}: unknown key {unknown[1]}{hint}"
    missing = re.fullmatch(r"Object missing required field (.*)", said)
    if missing:
        return f"{key}: {missing[1]} is missing"
    return f"{key}: {said[:1].lower()}{said[1:]}"


def _keys(record: type[msgspec.Struct]) -> set[str]:
    """Every key of the file's records, at any depth."""
    found: set[str] = set()
    pending: list[object] = [msgspec.inspect.type_info(record)]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            found |= {field.encode_name for field in info.fields}
            pending += [field.type for field in info.fields]
        pending += getattr(info, "types", ())
        if (item := getattr(info, "item_type", None)) is not None:
            pending.append(item)
    return found

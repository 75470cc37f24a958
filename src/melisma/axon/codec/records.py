"""Dataclasses and msgspec structs, sent by class name; a receiver constructs only known classes."""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from melisma.axon.codec.message import describe_part
from melisma.errors import MalformedError, SettingError


def record_fields(value: object) -> dict[str, Any] | None:
    """Return the fields of a dataclass instance or struct, None for other values."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def construct(parts: Any, types: Mapping[str, type]) -> Any:
    """Construct a record by its own constructor."""
    name, fields = parts
    kind = types.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MalformedError(
            f"record {describe_part(name)} is not a known type: name it in the annotations of the "
            "function, or for a result pass connect(..., types=[...])"
        )
    try:
        return _make(kind, fields)
    except Exception as error:  # Constructors are user code.
        raise MalformedError(
            f"{name} cannot be constructed from the received fields: {error!r}"
        ) from error


def record_types(annotations: Iterable[Any]) -> dict[str, type]:
    """Return the record classes in annotations, including generics, unions and record fields."""
    types: dict[str, type] = {}
    seen: set[type] = set()
    pending = list(annotations)
    while pending:
        hint = pending.pop()
        pending += typing.get_args(hint)
        hint = typing.get_origin(hint) or hint
        if not isinstance(hint, type) or not _is_record(hint):
            continue
        known = types.setdefault(hint.__qualname__, hint)
        if known is not hint:
            raise SettingError(
                f"two records are called {hint.__qualname__}, in {known.__module__} and in "
                f"{hint.__module__}: rename one, because records are sent by name"
            )
        if hint not in seen:
            seen.add(hint)
            pending += type_hints(hint).values()
    return types


def type_hints(subject: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function or class, empty if they cannot be resolved."""
    try:
        return typing.get_type_hints(subject)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def _make(kind: type, fields: dict[str, Any]) -> Any:
    if not dataclasses.is_dataclass(kind):
        return kind(**fields)
    late = {f.name: fields.pop(f.name) for f in dataclasses.fields(kind) if not f.init}
    record = kind(**fields)
    for field_name, value in late.items():
        object.__setattr__(record, field_name, value)
    return record


def _is_record(hint: type) -> bool:
    return dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)

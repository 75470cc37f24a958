"""Selection of the rows of a comparison."""

from collections.abc import Mapping
from typing import Protocol, TypeVar


class Row(Protocol):
    """A measured system, named by its module."""

    @property
    def module(self) -> str: ...


R = TypeVar("R", bound=Row)


def select(rows: Mapping[str, R], only: tuple[str, ...]) -> dict[str, R]:
    """Return the rows whose modules are named, or all; exit on an unknown name."""
    known = {row.module for row in rows.values()}
    if unknown := set(only) - known:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; use {', '.join(sorted(known))}")
    return {name: row for name, row in rows.items() if not only or row.module in only}

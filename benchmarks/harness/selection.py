"""Which rows of a comparison to run."""

from collections.abc import Mapping
from typing import Protocol, TypeVar


class Row(Protocol):
    """Something that is measured, named by its module."""

    @property
    def module(self) -> str: ...


R = TypeVar("R", bound=Row)


def select(rows: Mapping[str, R], only: tuple[str, ...]) -> dict[str, R]:
    """The rows whose modules are named, or all; a name that nobody has ends the program."""
    known = {row.module for row in rows.values()}
    if unknown := set(only) - known:
        raise SystemExit(f"no {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    return {name: row for name, row in rows.items() if not only or row.module in only}

"""Durations of the command line and of answers to `melisma init`, in seconds or with a unit."""

import re
from typing import Any, Final

import click

WITH_UNIT: Final = re.compile(r"(\d+(?:\.\d+)?) *(s|sec|seconds?|min|minutes?|h|hours?)")
SECONDS_OF: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90`, `90 s`, `10 min` or `2 h`; None for other text."""
    if match := WITH_UNIT.fullmatch(text.strip()):
        return float(match[1]) * SECONDS_OF[match[2][0]]
    try:
        return float(text)
    except ValueError:
        return None


class Duration(click.ParamType):  # type: ignore[type-arg]  # older versions are not generic
    """A duration of at least `min_s` as the type of an option; its value is in seconds."""

    name = "duration"

    def __init__(self, min_s: float | None = None) -> None:
        self.min_s = min_s

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds; a default may be a number."""
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
        if seconds is None:
            self.fail(f"invalid duration {value!r}; expected seconds, 10min or 2h", param, ctx)
        if self.min_s is not None and not seconds >= self.min_s:
            self.fail(f"{value} is too short; expected at least {self.min_s:g} s", param, ctx)
        return seconds


DURATION: Final = Duration()

"""Fleets built from the text of a FLEET.toml."""

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np

from melisma.backports import tomllib
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetFile
from melisma.fleet.fleet import Fleet


def build(text: str, learners: int | None = None) -> Fleet:
    return build_fleet(msgspec.convert(tomllib.loads(text), FleetFile).fleet, learners)


def build_group(count: int, lines: str = 'profile = "phone"', **settings: Any) -> Fleet:
    top = "".join(f"{key} = {value}\n" for key, value in settings.items())
    return build(f"[fleet]\n{top}[[fleet.group]]\ncount = {count}\n{lines}\n")


def equal(first: Any, second: Any) -> bool:
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        return all(equal(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return bool(first == second)


DRAWN = """
profile = "phone"
spread = { compute = 0.3, bandwidth_bps = 0.5, latency_s = 0.2 }
price = { mean = 1.0 }
states = { compute = [1.0, 0.4], bandwidth = [1.0, 0.9] }
"""

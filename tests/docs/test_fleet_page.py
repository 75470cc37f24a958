"""The fleet page has each key of the two files with its default, and each size by name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, inspect

from melisma.fleet.files.fleet_file import FleetFile, FleetGroup, FleetLearner, HardwareTable
from melisma.fleet.files.task_file import TaskFile
from melisma.fleet.sizes import DATA, MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "fleet" / "index.md").read_text(encoding="utf-8")
BOTH = "[[fleet.learner]] and [[fleet.group]]"
SIZES = re.compile(r"^\| `([\w-]+)` \| ([\d,]+) \| ([\d,]+) \|(?: ([\d,]+) \|)?$", re.MULTILINE)
SECTION = re.compile(r"^### ([^\n]*)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, dict[str, str]]:
    """Keys and defaults of each table of keys on the page, by its heading, or by two of them."""
    return {
        table: dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", body, re.MULTILINE))
        for heading, body in SECTION.findall(PAGE)
        if "| key | default |" in body
        for table in headings(heading.replace("`", ""))
    }


def headings(heading: str) -> list[str]:
    """Tables that learners and groups both may have stand under one heading."""
    return [heading] if heading == BOTH else heading.split(" and ")


def tables(struct: type[msgspec.Struct], place: str) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Each table that may stand in a file, by the heading that TOML gives it."""
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        for kind in getattr(field.type, "types", (field.type,)):
            inner, path = kind, f"{place}{field.encode_name}"
            heading = f"[{path}]"
            if isinstance(kind, inspect.VarTupleType):
                inner, heading = kind.item_type, f"[[{path}]]"
            if isinstance(inner, inspect.StructType):
                yield heading, inner.cls
                yield from tables(inner.cls, f"{path}.")


def keys(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {field.name: default(field) for field in msgspec.structs.fields(struct)}


def default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if field.default_factory is not NODEFAULT:
        value = field.default_factory()
    # Python may pass models and data as objects; a file has to name them.
    if value is NODEFAULT or (field.name in ("model", "data") and value == ""):
        return "required"
    if isinstance(value, msgspec.Struct):
        return "table"
    if value is None or value == ():
        return "none"
    return f"`{json.dumps(value) if isinstance(value, str | bool) else value}`"


def expected() -> dict[str, dict[str, str]]:
    found = {BOTH: keys(HardwareTable)}
    for heading, struct in [*tables(TaskFile, ""), *tables(FleetFile, "")]:
        shared = keys(HardwareTable) if struct in (FleetLearner, FleetGroup) else {}
        found[heading] = {k: v for k, v in keys(struct).items() if k not in shared}
    return found


def test_every_table_of_the_two_files_is_on_the_page_and_no_other() -> None:
    assert set(sections()) == set(expected())


@pytest.mark.parametrize("heading", expected())
def test_keys_and_defaults_of_a_table_are_those_of_the_code(heading: str) -> None:
    assert sections()[heading] == expected()[heading]


def test_models_and_data_have_the_sizes_of_the_code() -> None:
    on_page = {
        name: [int(n.replace(",", "")) for n in sizes if n] for name, *sizes in SIZES.findall(PAGE)
    }
    models = {n: [s.parameters, s.model_bytes, s.sample_ops] for n, s in MODELS.items()}
    data = {name: [size.samples, size.sample_bytes] for name, size in DATA.items()}
    assert on_page == models | data

"""Imports point one way, and torch stays in learning/pytorch/: held by reading every file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the entrance down; a folder imports from lines below its own.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("live", "simulation", "testing"),
    ("runs",),
    ("service",),
    ("cycle", "peer"),
    ("allocation", "learning"),
    ("fleet",),
    ("atomic", "prices", "user_code"),
    ("backports", "disclosure", "errors", "private_files", "text"),
)
# Remote calls stand alone, and only what talks to other processes uses them.
USE_AXON = ("cli", "live")
# Inside axon, from the entrance down as well.
AXON_LAYERS = (
    ("__init__",),
    ("worker",),
    ("discovery",),
    ("client",),
    ("server",),
    ("transport",),
    ("codec",),
    ("address", "call_record"),
)
TORCH = {"torch", "torchvision"}


def allowed_imports() -> dict[str, set[str]]:
    allowed = {"axon": {"axon", "backports", "errors", "text"}}
    for depth, layer in enumerate(LAYERS):
        below = {part for lower in LAYERS[depth + 1 :] for part in lower}
        for part in layer:
            allowed[part] = below | {part} | ({"axon"} if part in USE_AXON else set())
    return allowed


ALLOWED = allowed_imports()


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield every module named by an import, also inside functions and TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def violations(part: str, code: str, *, torch_allowed: bool = False) -> list[str]:
    """Say what a file in one part of the package imports that it must not."""
    found = []
    for name in imported_modules(ast.parse(code)):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top == "":
            found.append(f"{part} imports {name}: relative")
        elif top in TORCH and not torch_allowed:
            found.append(f"{part} imports {name}: only learning/pytorch may")
        elif top == "melisma" and target in ALLOWED and target not in ALLOWED[part]:
            found.append(f"{part} imports {name}: {part} may use {sorted(ALLOWED[part])}")
    return found


def axon_violations(part: str, code: str) -> list[str]:
    """Return the imports of a part of axon that point to its own layer's neighbours or above."""
    depth = next(depth for depth, layer in enumerate(AXON_LAYERS) if part in layer)
    forbidden = {name for layer in AXON_LAYERS[: depth + 1] for name in layer} - {part}
    names = [name.split(".") for name in imported_modules(ast.parse(code))]
    return [".".join(n) for n in names if n[:2] == ["melisma", "axon"] and n[2] in forbidden]


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE / "melisma").parts[0].removesuffix(".py")


# The package's own file only says what is where, and loads parts when they are named.
FILES = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "melisma" / "__init__.py"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_place_allows(file: Path) -> None:
    assert part_of(file) in ALLOWED, f"{file} is in no layer"
    torch_allowed = file.parent == SOURCE / "melisma" / "learning" / "pytorch"
    code = file.read_text(encoding="utf-8")
    assert violations(part_of(file), code, torch_allowed=torch_allowed) == []


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("fleet", "from melisma.live import orchestrator"),
        ("cycle", "import melisma.live.journal"),
        ("cycle", "from melisma import axon"),
        ("axon", "from melisma import fleet"),
        ("axon", "import torch"),
        ("learning", "import torch"),
        ("live", "def train():\n    import torch.nn"),
        ("simulation", "from melisma.live import journal"),
        ("allocation", "if TYPE_CHECKING:\n    from melisma.learning.task import Task"),
        ("fleet", "from ..live import journal"),
    ],
)
def test_an_import_against_the_direction_is_caught(part: str, code: str) -> None:
    assert len(violations(part, code)) == 1


AXON_FILES = [file for file in FILES if part_of(file) == "axon"]


@pytest.mark.parametrize("file", AXON_FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_of_axon_imports_only_from_layers_below(file: Path) -> None:
    part = file.relative_to(SOURCE / "melisma" / "axon").parts[0].removesuffix(".py")
    assert axon_violations(part, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("codec", "from melisma.axon.transport.http import Request"),
        ("server", "def post():\n    from melisma.axon.client.remote import connect"),
        ("discovery", "from melisma.axon import worker"),
        ("address", "import melisma.axon.call_record"),
    ],
)
def test_an_import_against_the_direction_inside_axon_is_caught(part: str, code: str) -> None:
    assert len(axon_violations(part, code)) == 1


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("cli", "from melisma import __version__, axon"),
        ("cli", "from melisma.live import training"),
        ("live", "from melisma.allocation import med"),
        ("axon", "from melisma.errors import MelismaError"),
        ("cycle", "import numpy as np"),
    ],
)
def test_an_import_along_the_direction_is_allowed(part: str, code: str) -> None:
    assert violations(part, code) == []


def test_torch_is_allowed_where_it_belongs() -> None:
    assert violations("learning", "from torch import nn", torch_allowed=True) == []


def test_every_layer_exists() -> None:
    parts = {part for layer in LAYERS for part in layer} | {"axon"}
    assert parts == {part_of(file) for file in FILES}

"""The package runs on Python 3.10, the oldest version on devices: held by reading every file.

Tests and benchmarks may need a newer version; mypy checks all of them for 3.10, too.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from vermin import Config, visit

from melisma.backports import tomllib

ROOT = Path(__file__).parents[1]
OLDEST = (3, 10)
BACKPORTS = ROOT / "src/melisma/backports.py"  # chooses by version
FILES = sorted({*(ROOT / "src").rglob("*.py")} - {BACKPORTS})
# Methods that vermin attributes to no class, and options of the interpreter, since Python 3.11.
NEWER_METHODS = {"add_note", "uncancel", "cancelling"}
NEWER_OPTIONS = {"-P"}


def newer_names(code: str) -> Iterator[str]:
    """Yield what a module uses that Python 3.10 does not have."""
    config = Config()
    config.set_eval_annotations(True)
    config.add_exclusion("str.decode(errors)")  # bytes.decode, whose type vermin does not know
    # Raises SyntaxError, which `visit` returns.
    tree = ast.parse(code)
    visitor = visit(code, config)
    required = visitor.minimum_versions()[1] or (0, 0)
    if required > OLDEST:
        yield visitor.output_text().strip() or f"Python {required}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NEWER_METHODS:
            yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Call) and not (node.args or node.keywords):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to_bytes":
                yield f"line {node.lineno}: to_bytes without arguments"
        elif isinstance(node, ast.Constant) and node.value in NEWER_OPTIONS:
            yield f"line {node.lineno}: {node.value}"


@pytest.mark.parametrize(
    "code",
    [
        "import tomllib",
        "from typing import Self",
        "from datetime import UTC",
        "import asyncio\nasync def wait():\n    async with asyncio.timeout(1):\n        pass",
        "from enum import StrEnum",
        "try:\n    pass\nexcept* ValueError:\n    pass",
        "raise ExceptionGroup('several', [])",
        "def first[T](values: list[T]) -> T: ...",
        "from contextlib import chdir",
        "from hashlib import file_digest",
        "from itertools import batched",
        "number = (5).to_bytes()",
        "error.add_note('why')",
        "command = ['python', '-P', '-m', 'module']",
    ],
)
def test_a_newer_name_is_found(code: str) -> None:
    # A syntax error is one of the interpreter that runs this test.
    with suppress(SyntaxError):
        assert list(newer_names(code))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_a_module_uses_nothing_that_is_newer_than_python_3_10(file: Path) -> None:
    assert list(newer_names(file.read_text(encoding="utf-8"))) == []


def test_the_project_states_the_same_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["requires-python"] == ">=3.10"
    assert "Programming Language :: Python :: 3.10" in project["project"]["classifiers"]
    assert project["tool"]["ruff"]["target-version"] == "py310"
    assert project["tool"]["mypy"]["python_version"] == "3.10"

"""Every package that Melisma requires is imported by it, and pins name required packages only."""

import ast
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from melisma.backports import tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def imported_packages() -> set[str]:
    """Top-level names of all modules that the package imports, also inside functions."""
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_packages() -> set[str]:
    """All packages that the extras together bring, with what those require."""
    extras = [line for lines in EXTRAS.values() for line in lines]
    waiting = [*PROJECT["dependencies"], *(line for line in extras if "melisma[" not in line)]
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = normalized(requirement.name)
        if name in found or not (requirement.marker is None or requirement.marker.evaluate()):
            continue
        found.add(name)
        waiting += requires(name) or []
    return found


@pytest.mark.parametrize("extra", ["", *sorted(EXTRAS.keys() - {"dev"})])
def test_a_package_that_is_required_is_imported(extra: str) -> None:
    lines = EXTRAS[extra] if extra else PROJECT["dependencies"]
    names = {Requirement(line).name.replace("-", "_") for line in lines}
    assert names - imported_packages() == set()


def test_only_required_packages_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {normalized(line.partition("==")[0]) for line in lines}
    assert pinned - required_packages() == set()

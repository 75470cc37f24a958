"""What a package exports, what `__all__` says and what docs/api.md lists are the same."""

import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import melisma

API_PAGE = Path(__file__).parents[1] / "docs" / "api.md"


def packages() -> list[ModuleType]:
    walk = pkgutil.walk_packages(melisma.__path__, "melisma.")
    names = ["melisma", *(module.name for module in walk if module.ispkg)]
    found = [import_module(name) for name in names]
    return [package for package in found if hasattr(package, "__all__")]


def exported(package: ModuleType) -> set[str]:
    return {f"{package.__name__}.{name}" for name in package.__all__}


def documented() -> set[str]:
    lines = API_PAGE.read_text(encoding="utf-8").splitlines()
    matches = (re.match(r"- `(melisma(?:\.\w+)+)`: \S", line) for line in lines)
    return {match[1] for match in matches if match}


def test_the_api_page_lists_each_exported_name_and_no_other() -> None:
    assert documented() == set().union(*map(exported, packages()))


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_every_name_in_all_exists_and_is_listed_once(package: ModuleType) -> None:
    names = list(package.__all__)
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_nothing_of_the_project_is_exported_beside_all(package: ModuleType) -> None:
    stray = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_")
        and name not in package.__all__
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("melisma")
    }
    assert stray == set()


def test_importing_melisma_loads_no_part_of_it_and_no_other_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import melisma; print(*set(sys.modules) - before)"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"melisma"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(melisma, "nothing")  # noqa: B009 - mypy knows that it is not there

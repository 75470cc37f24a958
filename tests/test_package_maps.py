"""The map in a package's docstring lists exactly its modules and sub-packages."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "melisma"
# A name of a file or folder, but not one inside another folder, as `live/training.py`.
NAME = re.compile(r"(?<![\w/.`])(\w+(?:\.py|/(?!\w)))")
# A package with this many modules can be read without a map.
MAX_UNMAPPED_MODULES = 2


def contents(package: Path) -> set[str]:
    """Return the modules of a package as `name.py`, and its sub-packages as `name/`."""
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    return modules | {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}


def docstring_of(package: Path) -> str:
    """Return the docstring of a package; empty without one."""
    text = (package / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def listed_names(docstring: str) -> set[str]:
    """Return the names of files and folders in all indented blocks below a `::`."""
    blocks = re.findall(r"::\n\n((?:(?: .*)?\n?)*)", docstring)
    return set(NAME.findall("\n".join(blocks)))


def described_twice(docstring: str) -> list[str]:
    """Return the names with which more than one line of the indented blocks begins."""
    blocks = re.findall(r"::\n\n((?:(?: .*)?\n?)*)", docstring)
    first = Counter(re.findall(rf"^ +{NAME.pattern}", "\n".join(blocks), re.MULTILINE))
    return [name for name, count in first.items() if count > 1]


PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE.parent)))
def test_a_map_lists_the_contents_of_its_package_and_nothing_else(package: Path) -> None:
    docstring = docstring_of(package)
    listed, expected = listed_names(docstring), contents(package)
    assert described_twice(docstring) == []
    if listed or len(expected) > MAX_UNMAPPED_MODULES:
        assert sorted(listed - expected) == [], "listed, but missing in the package"
        assert sorted(expected - listed) == [], "in the package, but not listed"


def test_names_are_read_from_indented_blocks_alone() -> None:
    text = "About.\n\nThe modules::\n\n    a.py   first; b.py next\n\n    c/     more\n\nAlso d.py."
    assert listed_names(text) == {"a.py", "b.py", "c/"}
    assert listed_names("Describes a.py.\n\n    b.py in an example") == set()
    assert described_twice(text) == []
    assert described_twice("The modules::\n\n    a.py   one, see b.py\n    a.py   two") == ["a.py"]


def test_the_architecture_page_names_files_that_exist() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/\w+\.py)`", page)) | set(
        re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE)
    )
    assert {"live/training.py", "errors.py"} & named
    files = {name for name in named if not name.startswith("tests/")}
    assert sorted(name for name in files if not (SOURCE / name).is_file()) == []
    folders = re.findall(r"^\| `(\w+/)` \|", page, re.MULTILINE)
    assert sorted(folders) == sorted(name for name in contents(SOURCE) if name.endswith("/"))

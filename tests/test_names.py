"""A public class or a module has a name of its own, so that searching for it finds one thing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "melisma"

# The state machines are deliberately parallel: events or messages in, commands out.
PARALLEL_MODULES = {"commands", "events"}
PARALLEL_CLASSES = {"Command", "Event", "Finish", "TimeReached", "Wake"}


def modules() -> Iterator[str]:
    return (file.stem for file in SOURCE.rglob("*.py") if file.stem != "__init__")


def public_classes() -> Iterator[str]:
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def repeated(names: Iterator[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_no_module_name_exists_twice_but_in_the_parallel_machines() -> None:
    assert repeated(modules()) == PARALLEL_MODULES


def test_no_public_class_name_exists_twice_but_in_the_parallel_machines() -> None:
    assert repeated(public_classes()) == PARALLEL_CLASSES

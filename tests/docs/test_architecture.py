"""The walks of docs/architecture.md name files and functions that exist, in one direction."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALK = re.compile(r"^### (.+)\n\n((?:\d+\. .*\n)+)", re.MULTILINE)
STEP = re.compile(r"^\d+\. (\*?)`([\w/]+\.py)` `(\w+)`", re.MULTILINE)
WALKS = {title: STEP.findall(steps) for title, steps in WALK.findall(PAGE)}


def defined_names(file: str) -> set[str]:
    tree = ast.parse((ROOT / "src" / "melisma" / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_the_page_has_all_walks_and_reads_every_step() -> None:
    assert len(WALKS) == 10
    for title, steps in WALK.findall(PAGE):
        assert len(WALKS[title]) == len(steps.splitlines()), title


@pytest.mark.parametrize("title", WALKS)
def test_each_step_names_a_function_of_its_file(title: str) -> None:
    missing = [step for step in WALKS[title] if step[2] not in defined_names(step[1])]
    assert missing == []


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_visits_a_file_once_but_for_callbacks(title: str) -> None:
    visited: set[str] = set()
    for callback, file, _ in WALKS[title]:
        assert (file in visited) == bool(callback), file
        visited.add(file)

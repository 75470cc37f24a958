"""Each function and class on the page of public names has the signature of the code.

Names and defaults only: types stand in the code. `...` is a default made anew for each call, or
one that has no short name.
"""

import re
from importlib import import_module
from inspect import Parameter, ismodule, signature
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ENTRY = re.compile(r"^- `(melisma(?:\.\w+)+)`: .*\n((?:  .*\n)*)", re.MULTILINE)
PLAIN = (str, int, float, tuple, type(None))
STARS: dict[object, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def printed() -> dict[str, str]:
    """The lines under each name, put together."""
    entries = ENTRY.findall(PAGE.read_text(encoding="utf-8"))
    return {name: " ".join(below.split()) for name, below in entries}


def expected(path: str) -> str:
    """How to call it; nothing for a module or a table."""
    package, _, name = path.rpartition(".")
    value = getattr(import_module(package), name)
    if ismodule(value) or not callable(value):
        return ""
    parameters = [p for p in signature(value).parameters.values() if not p.name.startswith("_")]
    words = [_word(parameter) for parameter in parameters]
    named = [p.kind is Parameter.KEYWORD_ONLY for p in parameters]
    if any(named):
        words.insert(named.index(True), "*")
    return f"`{name}({', '.join(words)})`"


def _word(parameter: Parameter) -> str:
    name, default = STARS.get(parameter.kind, "") + parameter.name, parameter.default
    if default is Parameter.empty:
        return name
    return f"{name}={default!r}" if isinstance(default, PLAIN) else f"{name}=..."


@pytest.mark.parametrize("name", printed())
def test_the_signature_on_the_page_is_that_of_the_code(name: str) -> None:
    assert printed()[name] == expected(name)

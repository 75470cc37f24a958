"""The source of a class or function of a script or notebook, as a module of its own.

Learner processes import this module: nothing is pickled, and the script is not run again. It holds
the definition and what it uses by name: other definitions, imports, and constants.
"""

import __future__

import ast
import atexit
import hashlib
import inspect
import linecache
import shutil
import symtable
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any

from melisma.errors import SettingError

Definition = type | FunctionType
_Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MODULE_NAMES = {*vars(ModuleType("")), "__file__", "__cached__", "__builtins__", "__annotations__"}
"""Names that Python sets in each module."""
FIX = "define it in a file of its own, such as model.py, and import it from there"


def write_definition(definition: Definition) -> tuple[str, Path]:
    """Write a definition of `__main__` as a module; return its import path and its folder."""
    collector = _Collector(_namespace(definition))
    collector.add_definition(definition.__name__, definition)
    return write_module(collector.source, definition.__name__)


def write_module(source: str, name: str) -> tuple[str, Path]:
    """Write a module with this source; return the import path of a name in it, and its folder.

    The folder is deleted when this process ends.
    """
    folder = _folder()
    module = f"task_model_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    return f"{module}:{name}", folder


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="melisma-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Collector:
    """Collects the source of definitions, each after those that it uses."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace, self._seen = namespace, set[str]()
        self._imports, self._bodies = dict[str, None](), list[str]()

    @property
    def source(self) -> str:
        """The source of the module."""
        feature = self._namespace.get("annotations")
        is_future = isinstance(feature, __future__._Feature)
        future = ["from __future__ import annotations"] if is_future else []
        return "\n\n\n".join(["\n".join([*future, *self._imports]), *self._bodies]) + "\n"

    def add_definition(self, name: str, definition: Definition) -> None:
        """Add a definition, after everything that it uses."""
        self._seen.add(name)
        source = _source_of(definition)
        if isinstance(definition, type):
            _check_methods(definition, source)
        for used in _global_names(source):
            if used in self._namespace and used not in self._seen | MODULE_NAMES:
                self._add(used, self._namespace[used], name)
        self._imports |= dict.fromkeys(_submodule_imports(source, self._namespace))
        self._bodies.append(source)
        if definition.__name__ != name:
            self._bodies.append(f"{name} = {definition.__name__}")

    def _add(self, name: str, value: Any, user: str) -> None:
        origin, qualified = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
        if isinstance(value, ModuleType):
            self._import(name, f"import {value.__name__} as {name}")
        elif isinstance(value, Definition) and origin == self._namespace.get("__name__"):
            check_top_level(value)
            self.add_definition(name, value)
        elif origin and getattr(sys.modules.get(origin), str(qualified), None) is value:
            self._import(name, f"from {origin} import {qualified} as {name}")
        elif _is_constant(value):
            self._import(name, f"{name} = {value!r}")
        else:
            raise SettingError(
                f"model: {user} uses {name}, a {type(value).__name__} of the script or notebook, "
                f"which learners do not have: make it inside {user}, or "
                f"{FIX.replace('it', user, 1)}"
            )

    def _import(self, name: str, line: str) -> None:
        self._seen.add(name)
        self._imports[line] = None


def check_top_level(definition: Definition) -> None:
    """Raise `SettingError` for a lambda, or a definition inside a function."""
    if definition.__name__ == "<lambda>":
        raise SettingError(
            "model is a lambda, whose source learners cannot import; use def to give it a name"
        )
    if definition.__qualname__ != definition.__name__:
        raise SettingError(
            f"model {definition.__qualname__} is defined inside another one, so that learners "
            "cannot import it; define it at the top level of a file or cell"
        )


def _check_methods(definition: type, source: str) -> None:
    """Raise `SettingError` for a method that was assigned to a class after its definition."""
    statement = ast.parse(source).body[0]
    assert isinstance(statement, ast.ClassDef)
    written = {
        each.name: bool(each.decorator_list) for each in statement.body if isinstance(each, _Named)
    }
    others = [each for each in statement.body if not isinstance(each, _Named)]
    computed = {name for each in others for node in ast.walk(each) for name in _bound_names(node)}
    for name, member in vars(definition).items():
        function = inspect.unwrap(getattr(member, "__func__", member))
        if not isinstance(function, FunctionType) or name in computed:
            continue
        # A decorator may replace a method, and that of a class may add some.
        is_decorated = written.get(name, bool(statement.decorator_list))
        if not is_decorated and not function.__qualname__.startswith(f"{definition.__qualname__}."):
            raise SettingError(
                f"model: {definition.__name__}.{name} was assigned after the class was defined, so "
                "that learners do not have it: define it inside the class"
            )


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the name that an assignment or an import binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name


def _namespace(definition: Definition) -> Mapping[str, Any]:
    functions = _functions(definition)
    return functions[0].__globals__ if functions else vars(sys.modules[definition.__module__])


def _functions(definition: Definition) -> list[FunctionType]:
    """Return a function without its decorators, or the methods that a class defines itself."""
    if isinstance(definition, FunctionType):
        return [inspect.unwrap(definition)]
    members = [getattr(member, "__func__", member) for member in vars(definition).values()]
    unwrapped = [inspect.unwrap(each) for each in members if isinstance(each, FunctionType)]
    own = f"{definition.__qualname__}."
    return [
        each
        for each in unwrapped
        if each.__module__ == definition.__module__ and each.__qualname__.startswith(own)
    ]


def _source_of(definition: Definition) -> str:
    """Return the text of a definition; `SettingError` if it is unknown or one of several."""
    found = {ast.dump(node): (node, text) for node, text in _candidates(definition)}
    if not found:
        raise SettingError(
            f"model: the source of {definition.__name__} is not known, as it was typed in or made "
            f"by exec, so that learners cannot import it: {FIX}"
        )
    fitting = [text for node, text in found.values() if len(found) == 1 or _fits(definition, node)]
    if len(fitting) != 1:
        raise SettingError(
            f"model: {len(found)} definitions have the name {definition.__name__}, and it is not "
            f"known which one was given: rename the others, or {FIX}"
        )
    return fitting[0]


def _candidates(definition: Definition) -> Iterator[tuple[_Named, str]]:
    """Yield each statement that may have made a definition, with its text.

    A function tells its line, and a class that of its methods; without any, the name decides.
    """
    code = [function.__code__ for function in _functions(definition)]
    known = [each for each in code if linecache.getlines(each.co_filename)]
    if known or isinstance(definition, FunctionType):
        files = {each.co_filename for each in known}
    else:
        files = _files_without_methods(definition)
    for file in files:
        numbers = {each.co_firstlineno for each in known if each.co_filename == file}
        lines = linecache.getlines(file)
        for node in _parse(lines):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or first
            has_line = not numbers or any(first <= number <= last for number in numbers)
            if node.name == definition.__name__ and has_line:
                yield node, dedent("".join(lines[first - 1 : last])).rstrip()


def _files_without_methods(definition: Definition) -> set[str]:
    """Return the file of a class's module, and the cells of a notebook, which have no file."""
    file = getattr(sys.modules.get(definition.__module__), "__file__", None)
    cells = {name for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}
    return cells | set(filter(None, [file]))


def _parse(lines: list[str]) -> list[_Named]:
    try:
        return [*_definitions(ast.parse("".join(lines)))]
    except SyntaxError:
        return []


def _definitions(parent: ast.AST) -> Iterator[_Named]:
    """Yield the definitions of a module, also those in the branches of its statements."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _Named):
            yield node
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _definitions(node)


def _fits(definition: Definition, node: _Named) -> bool:
    """Whether the literals that a class assigns are those that it has."""
    has = vars(definition)
    return all(repr(has.get(name)) == repr(value) for name, value in _assigned_literals(node))


def _assigned_literals(node: _Named) -> Iterator[tuple[str, Any]]:
    for each in node.body:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and (value := getattr(each, "value", None)):
                with suppress(ValueError):
                    yield target.id, ast.literal_eval(value)


def _global_names(source: str) -> list[str]:
    """Return the global names that a definition uses, in alphabetical order."""
    names, tables = set[str](), [symtable.symtable(source, "<definition>", "exec")]
    while tables:
        table = tables.pop()
        is_top = table.get_type() == "module"
        tables += table.get_children()
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() or (is_top and symbol.is_referenced())
        }
    return sorted(names)


def _submodule_imports(source: str, namespace: Mapping[str, Any]) -> list[str]:
    """Return an import for each loaded submodule that is used as an attribute of its package."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        value, parts = node, list[str]()
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        root = namespace.get(value.id) if isinstance(value, ast.Name) else None
        if not isinstance(root, ModuleType) or not hasattr(root, "__path__"):
            continue
        for end in range(1, len(parts) + 1):
            name = ".".join([root.__name__, *parts[:end]])
            if name in sys.modules:
                lines.add(f"import {name}")
    return sorted(lines)


def _is_constant(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except Exception:  # noqa: BLE001 - any value of the user, whatever its methods raise
        return False

"""What a worker exposes: exactly what was said, nothing else."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from melisma.axon.codec import records
from melisma.axon.codec.encoding import decode_arguments
from melisma.axon.codec.message import Message
from melisma.axon.codec.outcome import Outcome, error_outcome, exception_outcome, result_outcome
from melisma.errors import AxonError, EncodingError, RefusedError, SettingError

Pattern = Literal["simplex", "duplex"]
Executor = Literal["inline", "thread", "process"]
Kind = Literal["function", "coroutine", "generator", "async generator"]
POOL_PROCESS: Final = "axon-call"
"""The name of the processes that run functions with executor="process"."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ExposedFunction:
    """One function that may be called from outside."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    pattern: Pattern
    executor: Executor
    types: dict[str, type]

    def describe(self) -> dict[str, str]:
        """What a caller may know of it."""
        try:
            signature = str(inspect.signature(self.function))
        except ValueError:
            signature = "(...)"
        return {
            "name": self.name,
            "signature": signature,
            "doc": inspect.getdoc(self.function) or "",
            "kind": self.kind,
            "pattern": self.pattern,
            "executor": self.executor,
        }


class Functions:
    """The functions of a worker, by name."""

    def __init__(self) -> None:
        self._exposed: dict[str, ExposedFunction] = {}

    def __iter__(self) -> Iterator[ExposedFunction]:
        return iter(self._exposed.values())

    def __len__(self) -> int:
        return len(self._exposed)

    def __getitem__(self, name: str) -> ExposedFunction:
        if exposed := self._exposed.get(name):
            return exposed
        offered = ", ".join(sorted(self._exposed)) or "nothing yet"
        raise RefusedError(f"no function {name!r} here; this worker offers: {offered}")

    def rpc(
        self, comms_pattern: str = "simplex", *, executor: str = "thread", name: str | None = None
    ) -> Callable[[F], F]:
        """Decorate a function, coroutine function or generator to expose it.

        ``comms_pattern`` "duplex" is for calls of minutes or hours. ``executor``: "thread",
        "process" for work that holds the interpreter, "inline" for what returns at once.
        Coroutines run on the worker's event loop.
        """
        if callable(comms_pattern):  # @rpc without parentheses
            raise SettingError("write @rpc() with parentheses")

        def expose(function: F) -> F:
            self.add(function, name or function.__name__, comms_pattern, executor)
            return function

        return expose

    def expose(self, subject: object, methods: Iterable[str], *, name: str | None = None) -> None:
        """Expose the named methods of an object as ``name.method``, simplex, on threads."""
        if isinstance(methods, str):
            raise SettingError(f"methods is a list of names, such as [{methods!r}]")
        prefix = type(subject).__name__ if name is None else name
        for method in methods:
            function = getattr(subject, method, None)
            if not callable(function):
                raise SettingError(f"{prefix} has no method {method!r}")
            self.add(function, f"{prefix}.{method}" if prefix else method, "simplex", "thread")

    def add(self, function: Callable[..., Any], name: str, pattern: str, executor: str) -> None:
        """Expose one callable under a name."""
        pattern, executor = pattern.lower(), executor.lower()
        kind = _kind(function)
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise SettingError(f"{name!r} cannot be the name of a function")
        if name in self._exposed and self._exposed[name].function is not function:
            raise SettingError(f"a function {name!r} is exposed already; pass name=")
        if pattern not in ("simplex", "duplex"):
            raise SettingError(f"{name}: comms_pattern is simplex or duplex, not {pattern!r}")
        if executor not in ("inline", "thread", "process"):
            raise SettingError(f"{name}: executor is inline, thread or process, not {executor!r}")
        if "generator" in kind and pattern == "duplex":
            raise SettingError(f"{name}: a generator streams its results and is simplex")
        if isinstance(function, type):
            raise SettingError(f"{name} is a class: make an object of it and use expose")
        if executor == "process" and kind != "function":
            raise SettingError(
                f"{name} ({kind}) cannot run in a process of its own: only functions do"
            )
        if executor == "process" and not _importable(function):
            raise SettingError(
                f"{name}: executor='process' takes a plain function at the top of a module; "
                "another process finds it there by its name"
            )
        hints = records.type_hints(function).values()
        self._exposed[name] = ExposedFunction(
            name,
            function,
            kind,
            cast(Pattern, pattern),
            cast(Executor, executor),
            records.record_types(hints),
        )


def run_function(exposed: ExposedFunction, message: Message) -> Outcome:
    """Run a plain function to its end, whatever that is."""
    try:
        args, kwargs = decode_arguments(message, exposed.types)
    except AxonError as error:
        return error_outcome(error)
    try:
        return result_outcome(exposed.function(*args, **kwargs))
    except EncodingError as error:
        return error_outcome(error)
    except BaseException as error:  # noqa: BLE001 - even SystemExit must not end the worker
        return exception_outcome(error)


def _kind(function: Callable[..., Any]) -> Kind:
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.isgeneratorfunction(function):
        return "generator"
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    return "function"


def _importable(function: Callable[..., Any]) -> bool:
    return "." not in getattr(function, "__qualname__", ".") and function.__name__ != "<lambda>"

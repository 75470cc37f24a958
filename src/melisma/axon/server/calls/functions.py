"""The functions that a worker exposes; nothing else can be called."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from melisma.axon.codec import records
from melisma.axon.codec.encoding import decode_arguments
from melisma.axon.codec.message import Message
from melisma.axon.codec.outcome import Outcome, error_outcome, exception_outcome, result_outcome
from melisma.axon.server.calls.thread_pool import ThreadPool
from melisma.errors import AxonError, EncodingError, RefusedError, SettingError, TooLargeError

Pattern = Literal["simplex", "duplex"]
Executor = Literal["inline", "thread", "process"]
Kind = Literal["function", "coroutine", "generator", "async generator"]
POOL_PROCESS: Final = "axon-call"
"""The name of the processes that run functions with executor="process"."""
F = TypeVar("F", bound=Callable[..., Any])
CheckCaller = Callable[[str], object]
"""Takes the name of a caller; raises an `AxonError` to refuse its calls."""


@dataclass(frozen=True)
class RequestRules:
    """The callers of a function, the size of a request, and whether its arrays go to a file."""

    max_bytes: int | None = None
    spool: bool = False
    check_caller: CheckCaller | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise SettingError(
                f"max_body_bytes = {self.max_bytes} allows no call: use 1024 or more"
            )

    def check(self, caller: str, body_bytes: int, name: str) -> None:
        """Refuse other callers, and larger bodies with a `TooLargeError`."""
        if self.check_caller is not None:
            self.check_caller(caller)
        if self.max_bytes is not None and body_bytes > self.max_bytes:
            raise TooLargeError(
                f"the request has {body_bytes} bytes, the limit of {name} is {self.max_bytes}: "
                "send less at once, or raise max_body_bytes of the function"
            )


@dataclass(frozen=True)
class ExposedFunction:
    """One function that callers may call."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    pattern: Pattern
    executor: Executor
    types: dict[str, type]
    rules: RequestRules = RequestRules()

    def describe(self) -> dict[str, str]:
        """Return the description that callers can request."""
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
        names = ", ".join(sorted(self._exposed)) or "no functions"
        raise RefusedError(f"no function {name!r} on this worker; it exposes: {names}")

    def rpc(
        self,
        comms_pattern: str = "simplex",
        *,
        executor: str = "thread",
        name: str | None = None,
        max_body_bytes: int | None = None,
        spool: bool = False,
        check_caller: CheckCaller | None = None,
    ) -> Callable[[F], F]:
        """Decorate a function, coroutine function or generator to expose it.

        ``comms_pattern``: "duplex" for calls of minutes or hours. ``executor``: "thread", "process"
        for work that holds the interpreter lock, "inline" for functions that return at once.
        Coroutines run on the worker's event loop. ``max_body_bytes``: the largest request that the
        function needs, if less than `Limits.max_body_bytes`. ``spool``: receive large arrays into
        an unnamed temporary file, which the function sees as arrays in memory. ``check_caller``:
        called with the name of each caller before the rest of its request is received; it raises
        an `AxonError` to refuse the call.
        """
        if callable(comms_pattern):  # @rpc without parentheses
            raise SettingError("@rpc lacks parentheses: write @rpc()")

        def expose(function: F) -> F:
            rules = RequestRules(max_body_bytes, spool, check_caller)
            self.add(function, name or function.__name__, comms_pattern, executor, rules)
            return function

        return expose

    def expose(
        self,
        subject: object,
        methods: Iterable[str],
        *,
        name: str | None = None,
        max_body_bytes: int | None = None,
        spool: bool = False,
        check_caller: CheckCaller | None = None,
    ) -> None:
        """Expose the named methods of an object as ``name.method``, simplex, on threads.

        ``max_body_bytes``, ``spool`` and ``check_caller`` are those of `rpc`, for each method.
        """
        if isinstance(methods, str):
            raise SettingError(f"methods is a str: pass a list of names, such as [{methods!r}]")
        prefix = type(subject).__name__ if name is None else name
        for method in methods:
            function = getattr(subject, method, None)
            if not callable(function):
                raise SettingError(
                    f"{prefix or type(subject).__name__} has no method {method!r}: check the name"
                )
            full_name = f"{prefix}.{method}" if prefix else method
            rules = RequestRules(max_body_bytes, spool, check_caller)
            self.add(function, full_name, "simplex", "thread", rules)

    def remove(self, name: str) -> None:
        """Expose the methods under ``name`` no longer."""
        for known in [each for each in self._exposed if each.startswith(f"{name}.")]:
            del self._exposed[known]

    def add(
        self,
        function: Callable[..., Any],
        name: str,
        pattern: str,
        executor: str,
        rules: RequestRules = RequestRules(),  # noqa: B008 - frozen
    ) -> None:
        """Expose one callable under a name."""
        pattern, executor = pattern.lower(), executor.lower()
        kind = _kind(function)
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise SettingError(
                f"{name!r} is not a valid function name: use identifiers joined by dots"
            )
        if name in self._exposed and self._exposed[name].function is not function:
            raise SettingError(f"function {name!r} is already exposed: pass another name=")
        if pattern not in ("simplex", "duplex"):
            raise SettingError(f"{name}: comms_pattern must be simplex or duplex, not {pattern!r}")
        if executor not in ("inline", "thread", "process"):
            raise SettingError(
                f"{name}: executor must be inline, thread or process, not {executor!r}"
            )
        if "generator" in kind and pattern == "duplex":
            raise SettingError(f"{name} is a generator, which cannot be duplex: use simplex")
        if isinstance(function, type):
            raise SettingError(f"{name} is a class: create an object and pass it to expose")
        if executor == "process" and kind != "function":
            raise SettingError(
                f"{name} is a {kind}, which cannot run in a process: use a plain function"
            )
        if executor == "process" and not _importable(function):
            raise SettingError(
                f"{name}: executor='process' needs a plain function at the top level of a module, "
                "because another process imports it by name"
            )
        hints = records.type_hints(function).values()
        self._exposed[name] = ExposedFunction(
            name,
            function,
            kind,
            cast(Pattern, pattern),
            cast(Executor, executor),
            records.record_types(hints),
            rules,
        )


LARGE_TREE_BYTES: Final = 64 << 10
"""Arguments of more than this size, without arrays, are not decoded on the event loop."""


async def decode_off_loop(
    exposed: ExposedFunction, message: Message, threads: ThreadPool
) -> tuple[list[Any], dict[str, Any]]:
    """Decode arguments, large ones on a thread."""
    if len(message.tree) > LARGE_TREE_BYTES:
        return await threads.run(decode_arguments, message, exposed.types)
    return decode_arguments(message, exposed.types)


def run_function(exposed: ExposedFunction, message: Message) -> Outcome:
    """Run a plain function and return its outcome."""
    try:
        args, kwargs = decode_arguments(message, exposed.types)
    except AxonError as error:
        return error_outcome(error)
    return run_with_arguments(exposed, args, kwargs)


def run_with_arguments(
    exposed: ExposedFunction, args: list[Any], kwargs: dict[str, Any]
) -> Outcome:
    """Run a plain function with decoded arguments and return its outcome."""
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

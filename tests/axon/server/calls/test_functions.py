"""Only functions that are listed explicitly are exposed."""

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from melisma.axon.codec.encoding import encode, encode_arguments
from melisma.axon.codec.message import MESSAGE_TYPE, parse_message
from melisma.axon.codec.outcome import Outcome, error_from_json, remote_exception
from melisma.axon.server.calls.functions import Functions, run_function
from melisma.errors import RefusedError, SettingError
from tests.axon.values import Job, Place


def plain(place: Place, count: int = 1) -> list[Job]:
    """Says hello."""
    return []


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Store:
    size = 3

    def put(self, place: Place) -> None: ...

    def get(self) -> int:
        return self.size

    async def later(self) -> None: ...

    def _secret(self) -> None: ...


@pytest.fixture
def functions() -> Functions:
    return Functions()


def names(functions: Functions) -> list[str]:
    return [exposed.name for exposed in functions]


def test_without_a_decorator_nothing_is_exposed(functions: Functions) -> None:
    assert (len(functions), list(functions)) == (0, [])
    with pytest.raises(
        RefusedError, match=r"no function 'plain' on this worker; it exposes: no functions"
    ):
        functions["plain"]


def test_a_decorated_function_is_exposed_and_unchanged(functions: Functions) -> None:
    assert functions.rpc()(plain) is plain
    assert names(functions) == ["plain"]
    assert functions["plain"].function is plain


def test_an_unknown_function_is_refused_with_the_list_of_functions(functions: Functions) -> None:
    functions.rpc()(plain)
    functions.rpc(name="again")(plain)
    for name in ("", "Plain", "plain.__globals__", "__init__", "plain ", "again.plain"):
        with pytest.raises(RefusedError, match=r"no function .* exposes: again, plain"):
            functions[name]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, "function"),
        (coroutine, "coroutine"),
        (generator, "generator"),
        (async_generator, "async generator"),
        (functools.partial(coroutine), "coroutine"),
        (Store().get, "function"),
        (Store().later, "coroutine"),
        (lambda: 1, "function"),
        (len, "function"),
    ],
)
def test_the_kind_of_a_function_is_detected(functions: Functions, function: Any, kind: str) -> None:
    functions.rpc(name="f")(function)
    assert functions["f"].kind == kind


def test_only_the_listed_methods_of_an_object_are_exposed(functions: Functions) -> None:
    functions.expose(Store(), ["put", "get"])
    functions.expose(Store(), ["get"], name="other")
    functions.expose(Store(), ["later"], name="")
    assert names(functions) == ["Store.put", "Store.get", "other.get", "later"]
    assert {exposed.pattern for exposed in functions} == {"simplex"}


@pytest.mark.parametrize("method", ["absent", "size", "put.__func__", "", "get "])
def test_a_missing_method_is_refused_by_name(functions: Functions, method: str) -> None:
    with pytest.raises(SettingError, match=f"Store has no method {method!r}"):
        functions.expose(Store(), [method])
    assert len(functions) == 0


def test_nothing_is_reached_through_an_exposed_object(functions: Functions) -> None:
    functions.expose(Store(), ["get"], name="store")
    for name in ("store", "store.put", "store._secret", "store.get.__self__", "store.size"):
        with pytest.raises(RefusedError):
            functions[name]


@pytest.mark.parametrize(
    "name", ["", "1f", "a b", "a/b", "a.", ".a", "a..b", "a-b", "a?b", "<lambda>", "f\n"]
)
def test_an_invalid_function_name_is_refused(functions: Functions, name: str) -> None:
    with pytest.raises(SettingError, match="is not a valid function name"):
        functions.add(plain, name, "simplex", "thread")


def test_a_lambda_needs_a_name(functions: Functions) -> None:
    with pytest.raises(SettingError, match="is not a valid function name"):
        functions.rpc()(lambda: 1)
    functions.rpc(name="one")(lambda: 1)


def test_a_name_belongs_to_one_function(functions: Functions) -> None:
    functions.rpc()(plain)
    functions.rpc(executor="inline")(plain)  # said again, it counts
    assert functions["plain"].executor == "inline"
    with pytest.raises(SettingError, match="already exposed: pass another name="):
        functions.rpc(name="plain")(generator)
    assert functions["plain"].function is plain


@pytest.mark.parametrize("pattern", ["simplex", "duplex", "Simplex", "DUPLEX"])
@pytest.mark.parametrize("executor", ["inline", "thread", "process", "Thread", "Process"])
def test_patterns_and_executors_are_case_insensitive(
    functions: Functions, pattern: str, executor: str
) -> None:
    functions.rpc(pattern, executor=executor)(plain)
    exposed = functions["plain"]
    assert (exposed.pattern, exposed.executor) == (pattern.lower(), executor.lower())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"comms_pattern": "complex"}, "simplex or duplex, not 'complex'"),
        ({"comms_pattern": ""}, "simplex or duplex"),
        ({"executor": "fiber"}, "inline, thread or process, not 'fiber'"),
    ],
)
def test_unknown_patterns_and_executors_are_refused_with_the_known_ones(
    functions: Functions, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingError, match=f"plain: .*{reason}"):
        functions.rpc(**settings)(plain)
    assert len(functions) == 0


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_never_duplex(functions: Functions, function: Any) -> None:
    with pytest.raises(SettingError, match="cannot be duplex: use simplex"):
        functions.rpc(comms_pattern="duplex")(function)


@pytest.mark.parametrize(
    "function",
    [coroutine, generator, async_generator, lambda: 1, Store().get, functools.partial(plain)],
)
def test_a_process_needs_a_function_that_it_can_import(functions: Functions, function: Any) -> None:
    with pytest.raises(SettingError, match=r"at the top level of a module|cannot run in a process"):
        functions.rpc(executor="process", name="f")(function)


def test_a_decorator_without_parentheses_is_refused(functions: Functions) -> None:
    with pytest.raises(SettingError, match="lacks parentheses"):
        functions.rpc(plain)  # type: ignore[arg-type]
    assert len(functions) == 0


def test_annotations_define_the_records_of_a_function(functions: Functions) -> None:
    functions.rpc()(plain)
    functions.expose(Store(), ["put", "get"], name="store")
    functions.rpc()(len)
    assert functions["plain"].types == {"Place": Place, "Job": Job}
    assert functions["store.put"].types == {"Place": Place}
    assert functions["store.get"].types == functions["len"].types == {}


def test_the_description_of_a_function(functions: Functions) -> None:
    functions.rpc()(plain)
    functions.rpc(name="print_")(print)
    profile = functions["plain"].describe()
    assert profile.pop("signature").startswith("(place: ")
    assert profile == {
        "name": "plain",
        "doc": "Says hello.",
        "kind": "function",
        "pattern": "simplex",
        "executor": "thread",
    }
    functions.rpc(name="iter")(iter)
    assert functions["iter"].describe()["signature"] == "(...)"


def test_a_class_is_not_a_function(functions: Functions) -> None:
    with pytest.raises(SettingError, match="create an object and pass it to expose"):
        functions.rpc()(Store)


def test_methods_are_a_list_of_names(functions: Functions) -> None:
    with pytest.raises(SettingError, match=r"such as \['put'\]"):
        functions.expose(Store(), "put")


def outcome_of(function: Any, *args: Any) -> Outcome:
    functions = Functions()
    functions.rpc(name="f")(function)
    return run_function(functions["f"], encode_arguments(args, {}))


def test_a_function_that_returns_has_returned() -> None:
    outcome = outcome_of(len, [1, 2])
    assert (outcome.status, outcome.content_type, outcome.label) == (200, MESSAGE_TYPE, "returned")


def leave() -> None:
    raise SystemExit


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def mute() -> None:
    raise MuteError


@pytest.mark.parametrize(("function", "args"), [(len, []), (len, [5]), (leave, []), (mute, [])])
def test_a_function_that_raises_has_raised(function: Any, args: list[Any]) -> None:
    outcome = outcome_of(function, *args)
    assert (outcome.status, outcome.label) == (500, "raised")
    message = parse_message(b"".join(outcome.buffers))
    assert isinstance(remote_exception(message, {}), Exception)


def test_a_result_that_cannot_be_sent_names_its_place() -> None:
    outcome = outcome_of(lambda: {"inside": [object()]})
    error = error_from_json(outcome.status, b"".join(outcome.buffers))
    assert str(error).startswith("result['inside'][0] cannot be sent")


def test_a_message_without_arguments_is_malformed() -> None:
    functions = Functions()
    functions.rpc(name="f")(len)
    assert run_function(functions["f"], encode(5)).label == "malformed"

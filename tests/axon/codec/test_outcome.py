"""Outcomes: results and exceptions of every kind reach the caller."""

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.codec.encoding import encode
from melisma.axon.codec.outcome import (
    JSON_TYPE,
    error_from_json,
    error_outcome,
    exception_message,
    remote_exception,
)
from melisma.errors import AxonError, MalformedError, RemoteError
from tests.axon.values import plain, same


class OddError(Exception):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def journey(error: BaseException) -> BaseException:
    """Return the exception that the caller receives."""
    return remote_exception(exception_message(error), {})


BUILT_IN: list[type[Exception]] = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception)
]
SPECIAL: dict[type[Exception], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf-8", b"x", 0, 1, "why"),
    UnicodeEncodeError: ("utf-8", "x", 0, 1, "why"),
    UnicodeTranslateError: ("x", 0, 1, "why"),
    SyntaxError: ("why", ("file", 1, 2, "text", 3, 4)),
    IndentationError: ("why",),
    TabError: ("why",),
}
# Since Python 3.11.
GROUPS = [kind for kind in BUILT_IN if kind.__name__ == "ExceptionGroup"]
SPECIAL |= dict.fromkeys(GROUPS, ("several", [ValueError()]))
NOT_RAISED_HERE = {StopIteration, StopAsyncIteration, *GROUPS}


@pytest.mark.parametrize("kind", sorted(set(BUILT_IN), key=str))
def test_a_built_in_exception_arrives_as_itself(kind: type[Exception]) -> None:
    error = kind(*SPECIAL.get(kind, ("why", 7)))
    arrived = journey(error)
    if kind in NOT_RAISED_HERE:
        assert type(arrived) is RemoteError
        return
    assert type(arrived) is type(error)
    assert same(list(error.args), list(arrived.args))
    assert isinstance(arrived.__cause__, RemoteError)
    assert arrived.__cause__.type_name == type(error).__name__


@given(st.lists(plain, max_size=3))
def test_the_arguments_of_an_exception_arrive(args: list[Any]) -> None:
    assert same(args, list(journey(ValueError(*args)).args))


@pytest.mark.parametrize(
    "error", [OddError("odd"), SystemExit(3), KeyboardInterrupt(), AxonError()]
)
def test_an_exception_that_is_not_built_in_arrives_as_a_remote_error(error: BaseException) -> None:
    arrived = journey(error)
    assert type(arrived) is RemoteError
    assert arrived.type_name.split(".")[-1] == type(error).__qualname__
    assert type(error).__qualname__ in arrived.remote_traceback


@pytest.mark.parametrize(
    "error",
    [
        ValueError(object()),
        ValueError("file \udcff"),
        FileNotFoundError(2, "file", "\udcff"),
        KeyError({"\ud800": 1}),
        MuteError(),
        ValueError(MuteError()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_with_unsendable_arguments_still_arrives(error: Exception) -> None:
    arrived = journey(error)
    assert isinstance(arrived, RemoteError | type(error))


def test_the_remote_traceback_is_text() -> None:
    try:
        int("one")
    except ValueError as error:
        arrived = journey(error)
    cause = arrived.__cause__
    assert isinstance(cause, RemoteError)
    assert 'int("one")' in cause.remote_traceback
    assert "test_the_remote_traceback" in str(cause)


@given(plain | st.dictionaries(st.sampled_from(["type", "module", "message", "args"]), plain))
def test_a_message_without_an_exception_is_malformed(value: object) -> None:
    with pytest.raises(MalformedError):
        remote_exception(encode(value), {})


@pytest.mark.parametrize("name", ["print", "__import__", "int", "object", "open", "", "exit"])
def test_nothing_but_an_exception_is_ever_constructed(name: str) -> None:
    parts = {"type": name, "module": "builtins", "message": "", "traceback": "", "args": ["1"]}
    assert type(remote_exception(encode(parts), {})) is RemoteError


@given(
    st.sampled_from(sorted(kind.__name__ for kind in BUILT_IN)),
    st.lists(plain | st.lists(plain, max_size=2), max_size=6),
)
def test_a_built_in_exception_with_any_arguments_can_be_constructed_or_reported(
    name: str, args: list[Any]
) -> None:
    parts = {"type": name, "module": "builtins", "message": "", "traceback": "", "args": args}
    assert isinstance(remote_exception(encode(parts), {}), Exception)


def axon_errors(kind: type[AxonError] = AxonError) -> Iterator[type[AxonError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from axon_errors(below)


@pytest.mark.parametrize("kind", list(axon_errors()), ids=lambda kind: kind.code)
def test_every_error_of_a_call_arrives_as_itself(kind: type[AxonError]) -> None:
    outcome = error_outcome(kind("why, größe, \udcff"))
    assert (outcome.status, outcome.content_type) == (kind.status, JSON_TYPE)
    arrived = error_from_json(outcome.status, b"".join(outcome.buffers))
    assert type(arrived) is kind
    assert str(arrived) == "why, größe, \\udcff"


def test_every_axon_error_has_its_own_code() -> None:
    codes = [kind.code for kind in axon_errors()]
    assert len(set(codes)) == len(codes)


@given(st.binary() | st.sampled_from([b"[" * 100_000, b'{"error":' * 5000, b'{"error": "x"}']))
def test_an_invalid_error_body_gives_an_axon_error(body: bytes) -> None:
    error = error_from_json(502, body)
    assert type(error) is AxonError
    assert "HTTP status 502" in str(error)


@pytest.mark.parametrize("code", ["nonsense", 5, None, [], {}])
def test_an_unknown_code_is_an_axon_error_that_names_it(code: object) -> None:
    body = f'{{"error": {"null" if code is None else repr(code)}, "message": "why"}}'
    error = error_from_json(500, body.replace("'", '"').encode())
    assert type(error) is AxonError
    assert f"{code}: why" in str(error)


def test_escape_codes_of_a_remote_error_are_not_printed() -> None:
    body = rb'{"error": "refused", "message": "no \u001b[2J\n\u202enow"}'
    assert str(error_from_json(404, body)) == "no \\x1b[2J\n\\u202enow"
    error = remote_exception(exception_message(LookupError("\x1b]0;owned\x07")), {})
    assert "\x1b" not in str(error.__cause__)

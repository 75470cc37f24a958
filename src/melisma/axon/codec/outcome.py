"""Outcomes of calls: an HTTP status and the body that encodes a result or an error."""

import builtins
import traceback
from collections.abc import Sequence
from typing import Final

import msgspec

from melisma.axon.codec.encoding import Types, decode, encode
from melisma.axon.codec.message import MESSAGE_TYPE, Buffer, Message, message_buffers
from melisma.errors import (
    AxonError,
    EncodingError,
    MalformedError,
    RefusedError,
    RemoteError,
    UnauthorizedError,
    axon_error,
)
from melisma.text import visible, visible_lines

JSON_TYPE: Final = "application/json"
REFUSALS: Final = (RefusedError, UnauthorizedError, MalformedError)
"""Errors by which a function refuses a call."""


class Outcome(msgspec.Struct, frozen=True):
    """The response to a call; ``label`` is the outcome in metrics and traces."""

    status: int
    content_type: str
    buffers: Sequence[Buffer]
    label: str


def result_outcome(value: object) -> Outcome:
    """Return the outcome of a function that returned ``value``."""
    return Outcome(200, MESSAGE_TYPE, message_buffers(encode(value, "result")), "returned")


def exception_outcome(error: BaseException) -> Outcome:
    """Return the outcome of a function that raised ``error``.

    A function refuses a call by one of `REFUSALS`, which arrives as it is, without traceback.
    """
    if isinstance(error, REFUSALS):
        return error_outcome(error)
    return Outcome(500, MESSAGE_TYPE, message_buffers(exception_message(error)), "raised")


def error_outcome(error: AxonError) -> Outcome:
    """Return the outcome of a call that failed before or after the function ran."""
    body = msgspec.json.encode({"error": error.code, "message": _text(error)})
    return Outcome(error.status, JSON_TYPE, [body], error.code)


def exception_message(error: BaseException) -> Message:
    """Encode an exception: type name, message, traceback, and arguments if they can be sent."""
    kind = type(error)
    text = "".join(traceback.format_exception(error)).rstrip()
    parts = {"type": kind.__qualname__, "module": kind.__module__, "message": _text(error)}
    parts["traceback"] = _text(text)
    try:
        return encode({**parts, "args": _arguments(error)})
    except EncodingError:
        return encode({**parts, "args": [parts["message"]]})


def remote_exception(message: Message, types: Types) -> BaseException:
    """Return the exception to raise at the caller: the same built-in type if there is one."""
    match decode(message, types):
        case {
            "type": str(kind),
            "module": str(module),
            "message": str(text),
            "traceback": str(trace),
            "args": list(args),
        }:
            name = kind if module == "builtins" else f"{module}.{kind}"
        case _:
            raise MalformedError(
                "the exception in the response lacks its type, message, traceback or arguments"
            )
    # It is printed with the traceback of the caller; arguments stay as they are.
    remote = RemoteError(f"{name}: {visible_lines(text)}", name, visible_lines(trace))
    builtin = getattr(builtins, name, None)
    if not (isinstance(builtin, type) and issubclass(builtin, Exception)):
        return remote
    if issubclass(builtin, StopIteration | StopAsyncIteration):
        return remote  # Raised as such, it would silently end a loop of the caller.
    try:
        error = builtin(*args)
    except (TypeError, ValueError):  # UnicodeDecodeError and others need special arguments.
        return remote
    error.__cause__ = remote
    return error


def error_from_json(status: int, body: bytes | bytearray) -> AxonError:
    """Return the error in the JSON body of a response."""
    try:
        parts = msgspec.json.decode(body)
        code, message = parts["error"], parts["message"]
        return axon_error(visible(str(code)), visible_lines(str(message)))
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return AxonError(f"HTTP status {status}: {bytes(body[:200])!r}; is this an Axon worker?")


def _arguments(error: BaseException) -> list[object]:
    if isinstance(error, OSError) and error.filename is not None:
        return [error.errno, error.strerror, error.filename]  # ``args`` lacks the filename.
    return list(error.args)


def _text(subject: object) -> str:
    """Return ``str(subject)`` as valid Unicode; file names may hold lone surrogates."""
    try:
        return str(subject).encode(errors="backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - __str__ is user code
        return f"<str() raised {type(error).__qualname__}>"

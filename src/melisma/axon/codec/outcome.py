"""How a call ended, ready to be sent, kept or posted: a status and the buffers of a body."""

import builtins
import traceback
from collections.abc import Sequence
from typing import Final

import msgspec

from melisma.axon.codec.encoding import Types, decode, encode
from melisma.axon.codec.message import MESSAGE_TYPE, Buffer, Message, message_buffers
from melisma.errors import AxonError, EncodingError, MalformedError, RemoteError, axon_error

JSON_TYPE: Final = "application/json"


class Outcome(msgspec.Struct, frozen=True):
    """What the caller is sent; ``label`` says in one word how it ended."""

    status: int
    content_type: str
    buffers: Sequence[Buffer]
    label: str


def result_outcome(value: object) -> Outcome:
    """Return the outcome of a function that returned ``value``."""
    return Outcome(200, MESSAGE_TYPE, message_buffers(encode(value, "result")), "returned")


def exception_outcome(error: BaseException) -> Outcome:
    """Return the outcome of a function that raised ``error``."""
    return Outcome(500, MESSAGE_TYPE, message_buffers(exception_message(error)), "raised")


def error_outcome(error: AxonError) -> Outcome:
    """The call did not come to its end."""
    body = msgspec.json.encode({"error": error.code, "message": _text(error)})
    return Outcome(error.status, JSON_TYPE, [body], error.code)


def exception_message(error: BaseException) -> Message:
    """An exception as a message: its type by name, its arguments where they can travel."""
    kind = type(error)
    text = "".join(traceback.format_exception(error)).rstrip()
    parts = {"type": kind.__qualname__, "module": kind.__module__, "message": _text(error)}
    parts["traceback"] = _text(text)
    try:
        return encode({**parts, "args": _arguments(error)})
    except EncodingError:
        return encode({**parts, "args": [parts["message"]]})


def remote_exception(message: Message, types: Types) -> BaseException:
    """The exception to raise here: the same built-in type where there is one."""
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
            raise MalformedError("an exception that does not say its type, message and arguments")
    remote = RemoteError(f"{name}: {text}", name, trace)
    twin = getattr(builtins, name, None)
    if not (isinstance(twin, type) and issubclass(twin, Exception)):
        return remote
    if issubclass(twin, StopIteration | StopAsyncIteration):
        return remote  # Raised here, it would end a loop of the caller's.
    try:
        error = twin(*args)
    except (TypeError, ValueError):  # UnicodeDecodeError and the like take special arguments
        return remote
    error.__cause__ = remote
    return error


def error_from_json(status: int, body: bytes | bytearray) -> AxonError:
    """The error that a worker answered with."""
    try:
        parts = msgspec.json.decode(body)
        return axon_error(parts["error"], parts["message"])
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return AxonError(f"HTTP status {status}: {bytes(body[:200])!r}; is this an Axon worker?")


def _arguments(error: BaseException) -> list[object]:
    if isinstance(error, OSError) and error.filename is not None:
        return [error.errno, error.strerror, error.filename]  # Not among its args.
    return list(error.args)


def _text(subject: object) -> str:
    """What it says, with what is not Unicode escaped: the names of files may hold such."""
    try:
        return str(subject).encode(errors="backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - __str__ is the user's code
        return f"<its text cannot be made: {type(error).__qualname__}>"

"""Every error that Melisma raises on purpose, by cause.

::

    MelismaError
    ├── SettingError            a setting or an argument that cannot work
    ├── InfeasibleError         no plan keeps all constraints
    ├── DataError               data that cannot be had, or is not what it should be
    └── AxonError               a remote call did not end as it should
        ├── UnreachableError    nobody answers there, or the connection broke
        ├── RefusedError        the worker declined the call
        │   └── BusyError       it is at its limit of concurrent calls
        ├── UnauthorizedError   the token is missing, wrong, expired or used up
        ├── DeadlineError       the caller's deadline passed
        ├── CallCancelledError  the call was cancelled
        ├── EncodingError       a value that cannot travel
        ├── MalformedError      bytes that are not a message
        ├── TooLargeError       a message over the receiver's limit
        ├── TooSlowError        a request that trickles in below the receiver's limit
        ├── LostError           whether the call ran, or its result, is no longer known
        ├── StorageError        the worker could not keep a result
        └── RemoteError         the function raised something that has no twin here

``MelismaWarning`` is what is told and goes on.

A function that raises a built-in exception raises the same type at the caller, with a
``RemoteError`` that holds the remote traceback as its cause.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import ClassVar

# Known words that a message about an unknown one lists at most.
MAX_LISTED_WORDS = 25


class MelismaError(Exception):
    """The root: catch this to catch whatever Melisma raises on purpose."""


class MelismaWarning(UserWarning):
    """Something that its user should know; the work goes on."""


class SettingError(MelismaError, ValueError):
    """A setting or an argument that cannot work; the message says what would."""


class InfeasibleError(MelismaError):
    """No plan keeps all constraints; the message says what would make one possible.

    ``constraint`` is the setting that cannot be kept, ``miss`` by how much it is missed, in its
    own unit, and ``nearest`` the least changes that would be enough, each made alone; it is empty
    where more than one setting must change. ``learners`` and ``tasks`` are the numbers of those
    who cannot keep it, where it is about single ones.
    """

    def __init__(
        self,
        message: str,
        *,
        constraint: str,
        miss: float,
        nearest: Mapping[str, float],
        learners: Iterable[int] = (),
        tasks: Iterable[int] = (),
    ) -> None:
        super().__init__(message)
        self.learners = tuple(learners)
        self.tasks = tuple(tasks)
        self.constraint = constraint
        self.miss = miss
        self.nearest = dict(nearest)


class DataError(MelismaError):
    """Data that cannot be had, or is not what it should be; the message says what was tried."""


class AxonError(MelismaError):
    """A remote call did not end as it should.

    ``code`` names the cause on the wire, ``status`` is the HTTP status it travels with.
    """

    code: ClassVar[str] = "failed"
    status: ClassVar[int] = 500


class UnreachableError(AxonError):
    """Nobody answers at the address, or the connection broke and could not be made again."""

    code = "unreachable"
    status = 502


class RefusedError(AxonError):
    """The worker declined the call: no such function, or one that cannot be called so."""

    code = "refused"
    status = 404


class BusyError(RefusedError):
    """The worker is at its limit of concurrent calls; the call did not run."""

    code = "busy"
    status = 503


class UnauthorizedError(AxonError):
    """The token is missing, wrong, expired or used up."""

    code = "unauthorized"
    status = 401


class DeadlineError(AxonError):
    """The caller's deadline passed before the result was there."""

    code = "deadline"
    status = 504


class CallCancelledError(AxonError):
    """The call was cancelled before it ended."""

    code = "cancelled"
    status = 409


class EncodingError(AxonError, TypeError):
    """A value that cannot travel; the message names its place in the arguments."""

    code = "encoding"
    status = 500


class MalformedError(AxonError):
    """Bytes that are not a message, or a message that contradicts itself."""

    code = "malformed"
    status = 400


class TooLargeError(AxonError):
    """A message over the receiver's limit."""

    code = "too-large"
    status = 413


class TooSlowError(AxonError):
    """A request that trickles in below the receiver's limit."""

    code = "too-slow"
    status = 408


class LostError(AxonError):
    """Whether the call ran, or what it returned, is no longer known; it was not run again."""

    code = "lost"
    status = 410


class StorageError(AxonError):
    """The worker ran the call but could not keep its result."""

    code = "storage"
    status = 507


class RemoteError(AxonError):
    """The remote function raised something that has no twin among the built-in exceptions.

    ``type_name`` is the remote type, ``remote_traceback`` the traceback as text.
    """

    code = "raised"
    status = 500

    def __init__(self, message: str, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n\n{self.remote_traceback}" if self.remote_traceback else message


def suggest(unknown: str, known: Iterable[str], also: str = "") -> str:
    """Return the end of a message about an unknown word: the known word nearest to it, or all.

    `also` describes what is allowed beside the known words.
    """
    words = list(known)
    by_lower = {word.lower(): word for word in words}
    near = get_close_matches(unknown.lower(), by_lower, n=1)
    if near:
        return f"did you mean {by_lower[near[0]]}?"
    shown = [
        *words[:MAX_LISTED_WORDS],
        *["..."] * (len(words) > MAX_LISTED_WORDS),
        *[f"or {also}"] * bool(also),
    ]
    return f"expected one of {', '.join(shown)}"


def axon_error(code: str, message: str) -> AxonError:
    """The error that ``code`` names on the wire."""
    pending: list[type[AxonError]] = [AxonError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind(message)
        pending += kind.__subclasses__()
    return AxonError(f"{code}: {message}")

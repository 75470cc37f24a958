"""The exceptions that Melisma raises, by cause.

::

    MelismaError
    ├── SettingError            a setting or an argument is invalid
    │   └── SchemeError         a scheme of the user failed, or returned an invalid plan
    ├── InfeasibleError         no plan satisfies all constraints
    ├── DataError               data is missing or invalid
    ├── RunFailedError          a run failed; its report says how far it got
    └── AxonError               a remote call failed
        ├── UnreachableError    no worker answered, or the connection broke
        ├── RefusedError        the worker refused the call
        │   ├── BusyError       the worker is at its limit of concurrent calls
        │   ├── UnregisteredError the caller has not registered in the present run
        │   └── SupersededError   a later session of the same learner replaced the caller's
        ├── UnauthorizedError   the token or certificate is missing, wrong or no longer valid
        ├── DeadlineError       the caller's deadline passed
        ├── CallCancelledError  the call was cancelled
        ├── EncodingError       a value has a type that cannot be sent
        ├── MalformedError      the received bytes are not a valid message
        ├── TooLargeError       a message exceeds the receiver's limit
        ├── TooSlowError        a request arrived below the receiver's minimum rate
        ├── LostError           the worker no longer knows the call or its result
        ├── StorageError        the worker could not store a result
        └── RemoteError         the function raised an exception that is not a built-in

``MelismaWarning`` is the category of all warnings.

A built-in exception raised by a remote function is raised with the same type at the caller; its
cause is a ``RemoteError`` with the remote traceback.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, ClassVar

_FIELD = re.compile(r"\{(learner|task|shards)\[(\d+)\]\}")
# Known words that a message about an unknown one lists at most.
MAX_LISTED_WORDS = 25
# Comparing takes microseconds a word, so a fleet of a million names is not compared whole.
MAX_COMPARED_WORDS = 10_000


class MelismaError(Exception):
    """The base class of all exceptions that Melisma raises."""


class MelismaWarning(UserWarning):
    """The category of the warnings that Melisma issues."""


class SettingError(MelismaError, ValueError):
    """A setting or an argument is invalid; the message names a valid value."""


class SchemeError(SettingError):
    """A scheme of the user raised an exception or returned an invalid plan.

    No learner is to blame for that.
    """


class InfeasibleError(MelismaError):
    """No plan satisfies all constraints; the message names the changes that would allow one.

    ``constraint`` is the setting that cannot be satisfied and ``miss`` the amount by which it is
    missed, in its own unit. ``nearest`` maps settings to the nearest feasible values, each for a
    change of that setting alone; it is empty if several settings must change together.
    ``learners`` and ``tasks`` are the indices of the affected ones, if not all are.

    In ``message`` the field ``{learner[3]}`` stands for the learner of index 3, ``{task[0]}`` for a
    task, and ``{shards[9]}`` for the setting that makes 9 shards. They read "learner 3", "task 0"
    and "shards = 9" until `with_names` replaces them.
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
        super().__init__(_FIELD.sub(_number_field, message))
        self._message = message
        self.learners = tuple(learners)
        self.tasks = tuple(tasks)
        self.constraint = constraint
        self.miss = miss
        self.nearest = dict(nearest)

    def with_names(
        self,
        learners: Sequence[str],
        tasks: Sequence[str] = (),
        shards_setting: Callable[[int], str] | None = None,
    ) -> "InfeasibleError":
        """Return the same error with the names of learners and tasks, by index, in its message.

        `shards_setting` returns the setting of the task file that makes a number of shards.
        """
        named = InfeasibleError(
            self._message,
            constraint=self.constraint,
            miss=self.miss,
            nearest=self.nearest,
            learners=self.learners,
            tasks=self.tasks,
        )

        def name(field: re.Match[str]) -> str:
            noun, index = field[1], int(field[2])
            if noun == "learner":
                return learners[index]
            if noun == "shards":
                return shards_setting(index) if shards_setting else _number_field(field)
            return f"task {tasks[index] if tasks else index}"

        message = self._message
        if self.learners and "{learner[" not in message:
            # A scheme of the user's own may leave its learners out of the message.
            more = ", ..." * (len(self.learners) > 5)
            message += f" ({', '.join(f'{{learner[{each}]}}' for each in self.learners[:5])}{more})"
        named.args = (_FIELD.sub(name, message),)
        return named

    def with_nearest(
        self, nearest: Mapping[str, float], text: str, new_text: str
    ) -> "InfeasibleError":
        """Return the same error with other nearest values; `new_text` names them, not `text`."""
        changed = InfeasibleError(
            self._message.replace(text, new_text),
            constraint=self.constraint,
            miss=self.miss,
            nearest=nearest,
            learners=self.learners,
            tasks=self.tasks,
        )
        changed.args = (str(self).replace(text, new_text),)
        return changed


def _number_field(field: re.Match[str]) -> str:
    return f"{field[1]} = {field[2]}" if field[1] == "shards" else f"{field[1]} {field[2]}"


class DataError(MelismaError):
    """Data is missing or invalid; the message says which source was tried."""


class RunFailedError(MelismaError):
    """A run failed; ``report`` is the `Report` of what it did until then."""

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report


class AxonError(MelismaError):
    """A remote call failed.

    ``code`` names the cause in the response, ``status`` is the HTTP status of the response.
    """

    code: ClassVar[str] = "failed"
    status: ClassVar[int] = 500


class UnreachableError(AxonError):
    """No worker answered at the address, or the connection broke and retries failed.

    Start the worker; check the address, the interface that it listens on, and the firewall.
    """

    code = "unreachable"
    status = 502


class RefusedError(AxonError):
    """The worker, or the function that was called, refused the call; the message says why."""

    code = "refused"
    status = 404


class BusyError(RefusedError):
    """The worker is at its limit of concurrent calls: the call did not run, so call again later."""

    code = "busy"
    status = 503


class UnregisteredError(RefusedError):
    """The caller has not registered as a learner of the present run, which may be a new one."""

    code = "unregistered"
    status = 409


class SupersededError(RefusedError):
    """A later session of the same learner has replaced the session of the caller.

    The learner's identity is in use on another device or in another process.
    """

    code = "superseded"
    status = 409


class UnauthorizedError(AxonError):
    """The token or certificate is missing, wrong or no longer valid; pass another one."""

    code = "unauthorized"
    status = 401


class DeadlineError(AxonError):
    """The caller's deadline passed before the result arrived; the worker cancels the call."""

    code = "deadline"
    status = 504


class CallCancelledError(AxonError):
    """The call was cancelled before it ended, by the caller or because the worker stopped."""

    code = "cancelled"
    status = 409


class EncodingError(AxonError, TypeError):
    """A value has a type that cannot be sent; the message names its path and a conversion."""

    code = "encoding"
    status = 500


class MalformedError(AxonError):
    """The received bytes are not a valid message; check that both sides have the same version."""

    code = "malformed"
    status = 400


class TooLargeError(AxonError):
    """A message exceeds the receiver's limit; the message names the limit to raise."""

    code = "too-large"
    status = 413


class TooSlowError(AxonError):
    """A request arrived below the receiver's ``min_bytes_per_s``; lower it for slow links."""

    code = "too-slow"
    status = 408


class LostError(AxonError):
    """The worker no longer knows whether the call ran, or its result, and did not run it again.

    Call again with a new id if running the function twice is harmless.
    """

    code = "lost"
    status = 410


class StorageError(AxonError):
    """The worker ran the call but could not store its result; free space and call again."""

    code = "storage"
    status = 507


class RemoteError(AxonError):
    """The remote function raised an exception that is not a built-in.

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

    `also` describes other allowed values.
    """
    words = list(known)
    if near := nearest_word(unknown, words):
        return f"did you mean {near}?"
    shown = [
        *words[:MAX_LISTED_WORDS],
        *["..."] * (len(words) > MAX_LISTED_WORDS),
        *[f"or {also}"] * bool(also),
    ]
    return f"expected one of {', '.join(shown)}"


def nearest_word(unknown: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to the unknown one in any case, or None."""
    by_lower = {word.lower(): word for word in islice(known, MAX_COMPARED_WORDS)}
    near = get_close_matches(unknown.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def axon_error(code: str, message: str) -> AxonError:
    """Return the error that ``code`` names in a response."""
    pending: list[type[AxonError]] = [AxonError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind(message)
        pending += kind.__subclasses__()
    return AxonError(f"{code}: {message}")

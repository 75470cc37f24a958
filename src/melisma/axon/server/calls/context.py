"""The call that a running function serves."""

import time
from contextvars import ContextVar, Token

import msgspec


class CallContext(msgspec.Struct, gc=False):
    """A call, as the function that serves it sees it."""

    id: str
    function: str
    caller: str
    deadline_at: float | None = None
    started_at: float = 0.0
    bytes_in: int = 0
    fingerprint: str | None = None
    """The fingerprint of the caller's certificate; None without one."""
    host: str | None = None
    """The host that the call came from; None through a relay."""
    _cancelled: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the caller's deadline; None without one."""
        if self.deadline_at is None:
            return None
        return max(0.0, self.deadline_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the caller no longer waits for the result; long loops should check this."""
        return self._cancelled or self.seconds_left == 0.0

    def cancel(self) -> None:
        """Set `cancelled`."""
        self._cancelled = True


_current: ContextVar[CallContext] = ContextVar("axon_call")


def current_call() -> CallContext:
    """Return the call that the running function serves; raise LookupError outside a call."""
    return _current.get()


def enter(context: CallContext) -> "Token[CallContext]":
    """Make ``context`` the current call of this task or thread."""
    return _current.set(context)


def leave(token: "Token[CallContext]") -> None:
    """Restore the current call from before `enter`."""
    _current.reset(token)

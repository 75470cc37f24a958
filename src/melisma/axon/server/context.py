"""What a running function can learn about the call that it serves."""

import time
from contextvars import ContextVar, Token

import msgspec


class CallContext(msgspec.Struct, gc=False):
    """The call that is being served."""

    id: str
    function: str
    caller: str
    deadline_at: float | None = None
    started_at: float = 0.0
    bytes_in: int = 0
    _cancelled: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the caller's deadline; None without one."""
        if self.deadline_at is None:
            return None
        return max(0.0, self.deadline_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once nobody waits for the result: a long loop does well to look now and then."""
        return self._cancelled or self.seconds_left == 0.0

    def cancel(self) -> None:
        """Tell the function that nobody waits any more."""
        self._cancelled = True


_current: ContextVar[CallContext] = ContextVar("axon_call")


def current_call() -> CallContext:
    """The call that the running function serves; LookupError outside of one."""
    return _current.get()


def enter(context: CallContext) -> "Token[CallContext]":
    """Make ``context`` the current call of this task or thread."""
    return _current.set(context)


def leave(token: "Token[CallContext]") -> None:
    """Make the current call what it was before `enter`."""
    _current.reset(token)

"""Methods that callers of an orchestrator may call with any arguments.

Arguments that do not fit a method are the caller's mistake, so they are refused. Any other error is
a defect of the orchestrator: it is logged with its cause, a few times for each method.
"""

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from melisma.axon import CallContext, current_call
from melisma.axon.server.authentication import ANONYMOUS
from melisma.errors import AxonError, DataError, MalformedError
from melisma.live.orchestrator.call_rates import CallRates

MAX_LOGGED: Final = 5
"""Errors of each method that are logged; a caller cannot fill the log."""
_log = logging.getLogger("melisma.live")
Method = Callable[..., Awaitable[Any]]


class StrictMethods:
    """The coroutine methods of `subject`, to be exposed in its place.

    Callers that call too often have to wait; see `CallRates`. Anonymous ones are told apart by
    their host.
    """

    def __init__(self, subject: object) -> None:
        self._subject, self._rates = subject, CallRates()
        self._failures: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Method:
        method: Method = getattr(self._subject, name)
        signature = inspect.signature(method)

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            # First, so that calls with invalid arguments are limited, too.
            await self._rates.wait(_account(current_call()))
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise MalformedError(f"invalid arguments of {name}: {error}") from None
            try:
                return await method(*args, **kwargs)
            # A `DataError` ends the run and is its error, such as a folder that was deleted.
            except (AxonError, DataError):
                raise
            except Exception:
                self._log(name)
                raise

        return call

    def _log(self, name: str) -> None:
        self._failures[name] += 1
        if self._failures[name] <= MAX_LOGGED:
            _log.exception("%s failed, called by %s", name, current_call().caller)


def _account(call: CallContext) -> str:
    """Return the name under which the calls of a caller are counted."""
    return f"{call.caller}@{call.host}" if call.caller == ANONYMOUS else call.caller

"""The record of a call that trace hooks receive."""

import logging
from collections.abc import Callable

import msgspec

_log = logging.getLogger("melisma.axon")


class CallRecord(msgspec.Struct, frozen=True):
    """One call as the worker saw it."""

    id: str
    function: str
    caller: str
    outcome: str
    bytes_in: int
    bytes_out: int
    seconds: float


TraceHook = Callable[[CallRecord], None]


def call_hook(trace: TraceHook, call: CallRecord) -> None:
    """Show a call to a hook."""
    try:
        trace(call)
    except Exception:  # noqa: BLE001 - a hook must not fail the call that it watches
        _log.exception("the trace hook raised")

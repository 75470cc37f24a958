"""The record of a call that trace hooks receive."""

import logging
from collections.abc import Callable

import msgspec

_log = logging.getLogger("melisma.axon")


class CallRecord(msgspec.Struct, frozen=True):
    """One call: its outcome, size and duration."""

    id: str
    function: str
    caller: str
    outcome: str
    bytes_in: int
    bytes_out: int
    seconds: float


TraceHook = Callable[[CallRecord], None]


def call_hook(hook: TraceHook, record: CallRecord) -> None:
    """Pass a record to a trace hook; log exceptions of the hook."""
    try:
        hook(record)
    except Exception:  # noqa: BLE001 - a hook must not fail the call that it traces
        _log.exception("the trace hook raised")

"""What a worker counts: one record a call for the trace hook, counters for Prometheus."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger("melisma.axon")


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the worker saw it."""

    id: str
    function: str
    caller: str
    outcome: str
    bytes_in: int
    bytes_out: int
    seconds: float


Trace = Callable[[CallRecord], None]


class Metrics:
    """Counters of one worker."""

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self._calls: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self.active = 0

    def record(self, call: CallRecord) -> None:
        """Count a call and show it to the hook."""
        self._calls[call.function, call.outcome] += 1
        self._seconds[call.function] += call.seconds  # type: ignore[assignment]
        self._bytes[call.function, "in"] += call.bytes_in
        self._bytes[call.function, "out"] += call.bytes_out
        if self._trace is not None:
            try:
                self._trace(call)
            except Exception:  # noqa: BLE001 - a hook must not fail the call that it watches
                _log.exception("the trace hook raised")

    def exposition(self) -> str:
        """The counters in Prometheus' text format."""
        lines = ["# TYPE axon_calls_total counter"]
        for (function, outcome), number in sorted(self._calls.items()):
            lines.append(f'axon_calls_total{{function="{function}",outcome="{outcome}"}} {number}')
        lines.append("# TYPE axon_call_seconds_total counter")
        for function, seconds in sorted(self._seconds.items()):
            lines.append(f'axon_call_seconds_total{{function="{function}"}} {seconds:.6f}')
        lines.append("# TYPE axon_bytes_total counter")
        for (function, direction), number in sorted(self._bytes.items()):
            labels = f'function="{function}",direction="{direction}"'
            lines.append(f"axon_bytes_total{{{labels}}} {number}")
        lines += ["# TYPE axon_calls_active gauge", f"axon_calls_active {self.active}", ""]
        return "\n".join(lines)

"""Counters of calls, in the text format of Prometheus."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from melisma.axon.call_record import CallRecord, TraceHook, call_hook


@dataclass(slots=True)
class _Counts:
    """The counters of one function."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class CallMetrics:
    """Counters of one worker."""

    def __init__(self, trace: TraceHook | None = None) -> None:
        self._trace = trace
        self._functions: defaultdict[str, _Counts] = defaultdict(_Counts)
        self.active = 0
        self.active_by_account: Counter[str] = Counter()

    def acquire_slot(self, account: str) -> "CallSlot":
        """Count one more concurrent call of an account until its slot is released."""
        self.active += 1
        self.active_by_account[account] += 1
        return CallSlot(self, account)

    def release_slot(self, account: str) -> None:
        """Count one concurrent call less."""
        self.active -= 1
        self.active_by_account[account] -= 1
        if not self.active_by_account[account]:
            del self.active_by_account[account]

    def record(self, call: CallRecord) -> None:
        """Count a call and pass it to the trace hook."""
        counts = self._functions[call.function]
        counts.outcomes[call.outcome] += 1
        counts.seconds += call.seconds
        counts.bytes_in += call.bytes_in
        counts.bytes_out += call.bytes_out
        if self._trace is not None:
            call_hook(self._trace, call)

    def prometheus_text(self) -> str:
        """Return the counters in the text format of Prometheus."""
        calls = ["# TYPE axon_calls_total counter"]
        seconds = ["# TYPE axon_call_seconds_total counter"]
        volume = ["# TYPE axon_bytes_total counter"]
        for name, counts in sorted(self._functions.items()):
            label = f'function="{name}"'
            for outcome, count in sorted(counts.outcomes.items()):
                calls.append(f'axon_calls_total{{{label},outcome="{outcome}"}} {count}')
            seconds.append(f"axon_call_seconds_total{{{label}}} {counts.seconds:.6f}")
            volume.append(f'axon_bytes_total{{{label},direction="in"}} {counts.bytes_in}')
            volume.append(f'axon_bytes_total{{{label},direction="out"}} {counts.bytes_out}')
        active = ["# TYPE axon_calls_active gauge", f"axon_calls_active {self.active}", ""]
        return "\n".join([*calls, *seconds, *volume, *active])


class CallSlot:
    """One of the concurrent calls; only the first `release` has an effect."""

    __slots__ = ("_metrics", "account")

    def __init__(self, metrics: CallMetrics, account: str) -> None:
        self._metrics: CallMetrics | None = metrics
        self.account = account

    def release(self) -> None:
        """Free the slot."""
        if self._metrics is not None:
            self._metrics.release_slot(self.account)
            self._metrics = None

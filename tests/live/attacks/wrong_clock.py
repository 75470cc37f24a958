"""A learner process whose clock is wrong: run `shift_clock` in it before its main function.

Durations are those of the monotonic clock, which no setting of the time changes.
"""

import datetime as dt
import time


def shift_clock(hours: int) -> None:
    """Shift all functions by which Python tells the time, not those that measure durations."""
    shift_s, shift = hours * 3600, dt.timedelta(hours=hours)
    real_s, real_ns, real = time.time, time.time_ns, dt.datetime

    class ShiftedDatetime(real):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "ShiftedDatetime":
            return super().now(tz) + shift

    time.time = lambda: real_s() + shift_s
    time.time_ns = lambda: real_ns() + shift_s * 10**9
    dt.datetime = ShiftedDatetime  # type: ignore[misc]

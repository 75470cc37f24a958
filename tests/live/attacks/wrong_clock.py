"""A learner process whose clock is wrong: run `shift_clock` in it before its main function.

Durations are those of the monotonic clock, which no setting of the time changes.
"""

import datetime as dt
import time

from typing_extensions import Self


def shift_clock(hours: int) -> None:
    """Shift all functions by which Python tells the time, not those that measure durations."""
    shift_s, shift = hours * 3600, dt.timedelta(hours=hours)
    real_s, real_ns = time.time, time.time_ns

    class ShiftedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return super().now(tz) + shift

    time.time = lambda: real_s() + shift_s
    time.time_ns = lambda: real_ns() + shift_s * 10**9
    dt.datetime = ShiftedDatetime  # type: ignore[misc]

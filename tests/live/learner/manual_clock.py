"""A clock that only sleeping and simulated work move."""


class ManualClock:
    """The wall time and the processor time of a process; sleeps are `oversleep_s` too long."""

    def __init__(self) -> None:
        self.now_s, self.used_s, self.oversleep_s = 100.0, 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        """Advance the wall time."""
        self.now_s += seconds + self.oversleep_s

    def work(self, seconds: float) -> None:
        """Advance the wall time and the processor time."""
        self.now_s += seconds
        self.used_s += seconds

"""Find the largest whole number at which a decreasing count still reaches a target."""

from collections.abc import Callable
from math import isqrt, log

from melisma.allocation.costs import MAX_UPDATES


def bisect_largest(count: Callable[[int], int], target: int, start: int = 1) -> int:
    """Return the largest x from 1 to `MAX_UPDATES` with count(x) >= target, or 0 if none.

    `count` must not increase. Counts here fall roughly as a power of x, so linear interpolation in
    logarithms usually lands next to the answer; each third step bisects.
    """
    low, high = 0, MAX_UPDATES + 1
    low_count = high_count = 0.0
    x, steps = min(max(start, 1), MAX_UPDATES), 0
    while high - low > 1:
        value, steps = count(x), steps + 1
        if value >= target:
            low, low_count = x, value
        else:
            # One half for a count of 0, which has no logarithm.
            high, high_count = x, max(value, 0.5)
        if not low_count or not high_count:
            # Only one end is known: move away from it in increasing steps.
            x += 4 ** (steps - 1) if low_count else -(4 ** (steps - 1))
        elif steps % 3 == 0:
            x = isqrt(low * high)
        else:
            share = log(low_count / target) / log(low_count / high_count)
            x = round(low * (high / low) ** share)
        x = min(max(x, low + 1), high - 1)
    return low

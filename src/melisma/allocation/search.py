"""The last whole number at which a falling count still reaches a target."""

from collections.abc import Callable
from math import isqrt

from melisma.allocation.costs import MOST_UPDATES


def last_reaching(count: Callable[[int], int], target: int) -> int:
    """Largest x from 1 to MOST_UPDATES with count(x) >= target, for a count that never grows.

    0 if there is none. Counts here fall about as 1/x, so a step to x * count / target mostly
    lands next to the answer; every third one halves what is left on a log scale.
    """
    reaches, misses, x, steps = 0, MOST_UPDATES + 1, 1, 0
    while misses - reaches > 1:
        found, steps = count(x), steps + 1
        if found >= target:
            reaches = x
        else:
            misses = x
        x = isqrt(max(reaches, 1) * misses) if steps % 3 == 0 else x * found // target
        x = min(max(x, reaches + 1), misses - 1)
    return reaches

"""The last whole number at which a falling count still reaches a target."""

from collections.abc import Callable
from math import isqrt, log

from melisma.allocation.costs import MAX_UPDATES


def bisect_largest(count: Callable[[int], int], target: int, start: int = 1) -> int:
    """Largest x from 1 to MAX_UPDATES with count(x) >= target, for a count that never grows.

    0 if there is none. Counts here fall about as a power of x: a straight line through both ends
    in logarithms mostly lands next to the answer; each third step halves what is left.
    """
    reaches, misses = 0, MAX_UPDATES + 1
    reached = missed = 0.0
    x, steps = min(max(start, 1), MAX_UPDATES), 0
    while misses - reaches > 1:
        found, steps = count(x), steps + 1
        if found >= target:
            reaches, reached = x, found
        else:
            # A half for none, which has no logarithm.
            misses, missed = x, max(found, 0.5)
        if not reached or not missed:
            # Only one end is known: walk away from it in ever longer steps.
            x += 4 ** (steps - 1) if reached else -(4 ** (steps - 1))
        elif steps % 3 == 0:
            x = isqrt(reaches * misses)
        else:
            share = log(reached / target) / log(reached / missed)
            x = round(reaches * (misses / reaches) ** share)
        x = min(max(x, reaches + 1), misses - 1)
    return reaches

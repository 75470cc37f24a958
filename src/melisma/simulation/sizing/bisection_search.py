"""The first candidate that holds, found by doubling and bisection.

Candidates are ordered so that a later one is easier to hold. If they are not monotone, the result
still holds and its predecessor fails, but an earlier candidate may hold, too.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FirstHolding:
    """The index of the first candidate that holds, None if none was found.

    `confirmed` is whether the next candidate holds, too: if not, they are not monotone.
    """

    index: int | None
    confirmed: bool = True


def find_first(count: int, holds: Callable[[int], bool]) -> FirstHolding:
    """Search the candidates from 0 to `count` - 1; `holds` is called at most once for each."""
    known: dict[int, bool] = {}

    def check(index: int) -> bool:
        if index not in known:
            known[index] = holds(index)
        return known[index]

    failing, step = -1, 1
    index = 0
    while not check(index):
        failing = index
        if index == count - 1:
            return FirstHolding(None)
        index, step = min(index + step, count - 1), 2 * step
    while index - failing > 1:
        middle = (failing + index) // 2
        if check(middle):
            index = middle
        else:
            failing = middle
    return FirstHolding(index, confirmed=index == count - 1 or check(index + 1))

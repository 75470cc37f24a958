"""How many learners each table of a FLEET.toml stands for when a fleet of another size is wanted.

In the proportions of the file, by largest remainder: each table gets the whole part of its share,
and what is left over goes to the largest fractions, the first in the file where they are equal.
"""

from collections.abc import Sequence

from melisma.errors import SettingError
from melisma.fleet.files.fleet_file import MAX_LEARNERS


def apportion(counts: Sequence[int], learners: int | None) -> list[int]:
    """The counts of a fleet of so many learners; those of the file if none is asked for."""
    if learners is None:
        return list(counts)
    if not 1 <= learners <= MAX_LEARNERS:
        raise SettingError(f"{learners} learners asked for; expected 1 to {MAX_LEARNERS}")
    total = sum(counts)
    shares = [divmod(learners * count, total) for count in counts]
    wanted = [whole for whole, _ in shares]
    first = sorted(range(len(shares)), key=lambda place: -shares[place][1])
    for place in first[: learners - sum(wanted)]:
        wanted[place] += 1
    return wanted

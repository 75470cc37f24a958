"""The number of learners of each table of a FLEET.toml in a fleet of another size.

Proportions are kept by the largest remainder method: each table gets the integer part of its
share, and the remaining learners go to the largest fractions, ties to the first in the file.
"""

from collections.abc import Sequence

from melisma.errors import SettingError
from melisma.fleet.files.fleet_file import MAX_LEARNERS


def apportion(counts: Sequence[int], learners: int | None) -> list[int]:
    """Return the counts for a fleet of `learners` learners; by default those of the file."""
    if learners is None:
        return list(counts)
    if not 1 <= learners <= MAX_LEARNERS:
        raise SettingError(f"{learners} learners requested; expected 1 to {MAX_LEARNERS}")
    total = sum(counts)
    shares = [divmod(learners * count, total) for count in counts]
    result = [whole for whole, _ in shares]
    by_fraction = sorted(range(len(shares)), key=lambda index: -shares[index][1])
    for index in by_fraction[: learners - sum(result)]:
        result[index] += 1
    return result

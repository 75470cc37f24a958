"""The learners that a fault hits: by number, name, pattern or group, or a percentage of them.

A percentage is drawn by the seed of the fleet and the text of the fault, so that it does not depend
on other faults. It is rounded to a number of learners, at least one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

import numpy as np

from melisma.errors import SettingError, nearest_word
from melisma.fleet.array_types import Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator

ALL = "all"
# Characters that have a meaning in the text of a fault.
SPECIAL = frozenset(" ,;%*?[]")
NO_GROUPS: Mapping[str, range] = MappingProxyType({})
MAX_LISTED_GROUPS = 10


@dataclass(frozen=True)
class FaultTargets:
    """The learners that faults can name; `groups` maps names of groups to learners."""

    learners: int
    names: Sequence[str] = ()
    groups: Mapping[str, range] = field(default_factory=lambda: NO_GROUPS)
    seed: int = 0

    @classmethod
    def of_fleet(cls, fleet: Fleet) -> "FaultTargets":
        """Return the learners and groups of a fleet."""
        return cls(fleet.learners, fleet.names, fleet.groups, fleet.seed)

    def find(self, text: str, words: str, percent: str | None = None) -> tuple[int, ...]:
        """Return the learners that `words` of a fault name, or a percentage of them, in order."""
        found = [number for word in words.split(",") for number in self._find_word(text, word)]
        if percent is None:
            return tuple(dict.fromkeys(found))
        share = float(percent) / 100
        if not 0 < share <= 1:
            raise SettingError(f"fault {text!r}: {percent}%; expected more than 0%, up to 100%")
        members: Ints = np.unique(found)
        count = max(1, round(share * members.size))
        rng = generator(self.seed, f"fault {text}")
        return tuple(np.sort(rng.permutation(members)[:count]).tolist())

    def name(self, learner: int) -> str:
        """Return the name of a learner, or its number if a fault cannot name it otherwise."""
        name = self.names[learner] if learner < len(self.names) else ""
        is_word = name and not name.isdecimal() and not SPECIAL & set(name)
        return name if is_word else str(learner)

    def _find_word(self, text: str, word: str) -> Sequence[int]:
        if word.isdecimal() and int(word) < self.learners:
            return (int(word),)
        if not word.isdecimal() and word in self.names:
            return (self.names.index(word),)
        if word in self.groups:
            return self.groups[word]
        if word == ALL:
            return range(self.learners)
        matching = [i for i, name in enumerate(self.names) if fnmatchcase(name, word)]
        if matching and SPECIAL & set(word):
            return matching
        raise SettingError(f"fault {text!r}: unknown learner {word}; {self._expected(word)}")

    def _expected(self, word: str) -> str:
        if not word.isdecimal() and (near := nearest_word(word, [*self.groups, *self.names])):
            return f"did you mean {near}?"
        numbers = f"use 0 to {self.learners - 1}"
        if not self.groups:
            return numbers
        names = list(self.groups)
        more = ", ..." * (len(names) > MAX_LISTED_GROUPS)
        return f"{numbers}, a name, or a group: {', '.join(names[:MAX_LISTED_GROUPS])}{more}"

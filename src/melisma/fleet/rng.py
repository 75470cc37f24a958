"""Random numbers by key: they depend neither on the order of calls nor on other learners.

`generator` returns the generator of one purpose, cycle and learner; `Generators` seeds those of
many learners at once. `uniform` returns one number per learner, a hash of the key and the
learner's number (two rounds of splitmix64; Steele, Lea and Flood 2014): a single learner computes
the same number for itself as in a call for a million learners.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import cycle as repeated
from itertools import islice, permutations
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats, Ints

Words = NDArray[np.uint64]
Words32 = NDArray[np.uint32]
# The constants of splitmix64.
GOLDEN, MIX_1, MIX_2 = (
    np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# The constants of NumPy's SeedSequence: initial value and multiplier of each hash, and the factors
# that mix two words.
POOL_HASH, POOL_MIX = (0x43B0D7E5, 0x931E8875), (np.uint32(0xCA01F9DD), np.uint32(0x4973F715))
STATE_HASH, STATE_WORDS = (0x8B51F9DD, 0x58F38DED), 8
SHIFT = np.uint32(16)
# Bits of a double between 0 and 1.
MANTISSA_BITS = 53
WORD_LIMIT = 1 << 32


def generator(seed: int, purpose: str, cycle: int = 0, learner: int = 0) -> np.random.Generator:
    """Return the generator of a seed for one purpose, cycle and learner."""
    return np.random.default_rng((seed, crc32(purpose.encode()), cycle, learner))


class Generators:
    """Generators of many learners for one purpose and cycle, seeded in less than half the time."""

    def __init__(self, seed: int, purpose: str, cycle: int, learners: Ints) -> None:
        self._key, self._learners = (seed, crc32(purpose.encode()), cycle), learners
        self._states = np.empty((0, STATE_WORDS), np.uint32)
        if max(*self._key, int(learners.max(initial=0))) < WORD_LIMIT:
            self._states = _seed_states([*(np.full_like(learners, w) for w in self._key), learners])

    def get(self, index: int) -> np.random.Generator:
        """Return the generator of the learner at this index."""
        key = (*self._key, int(self._learners[index]))
        if not self._states.size:
            return np.random.default_rng(key)
        return np.random.Generator(
            np.random.PCG64(_PrecomputedSeedSequence(key, self._states[index]))
        )


class _PrecomputedSeedSequence(ISpawnableSeedSequence):
    """A `SeedSequence` whose first words are known; computed in full only when more are needed."""

    def __init__(self, key: tuple[int, ...], words: Words32) -> None:
        self._key, self._words = key, words

    @cached_property
    def _full(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._key)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        words: NDArray[Any] = self._words.view(dtype)
        if n_words > words.size:
            words = self._full.generate_state(n_words, dtype)
        return words[:n_words]

    def spawn(self, n_children: int) -> Any:
        return self._full.spawn(n_children)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._full, name)

    def __reduce__(self) -> Any:
        return np.random.SeedSequence, (self._key,)


def _seed_states(key: list[Ints]) -> Words32:
    """Compute `SeedSequence.generate_state` for keys of four words, one row per learner."""
    constants = _hash_constants(*POOL_HASH)
    pool = [_hash(words.astype(np.uint32), *next(constants)) for words in key]
    for source, target in permutations(range(len(pool)), 2):
        mixed = pool[target] * POOL_MIX[0] - _hash(pool[source], *next(constants)) * POOL_MIX[1]
        pool[target] = mixed ^ (mixed >> SHIFT)
    pairs = islice(_hash_constants(*STATE_HASH), STATE_WORDS)
    hashes = [_hash(words, *pair) for words, pair in zip(repeated(pool), pairs, strict=False)]
    return np.stack(hashes, axis=1)


def _hash(words: Words32, added: np.uint32, factor: np.uint32) -> Words32:
    words = (words ^ added) * factor
    mixed: Words32 = words ^ (words >> SHIFT)
    return mixed


def _hash_constants(word: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """Yield pairs of successive terms of the sequence word * factor**n."""
    while True:
        yield np.uint32(word), np.uint32(word := word * factor % WORD_LIMIT)


def uniform(seed: int, purpose: str, cycle: int, learners: Ints, draw: int | Ints = 0) -> Floats:
    """Return a number in [0, 1) for each learner, by seed, purpose, cycle and learner number.

    `draw` numbers the draws of one learner if it needs several. As an array it is broadcast
    against `learners`: a column of learners and a row of draws give a matrix.
    """
    key = np.random.SeedSequence((seed, crc32(purpose.encode()), cycle))
    learner_key, draw_key = key.generate_state(2, np.uint64)
    word = _mix(_weyl(learners, learner_key)) + _weyl(draw, draw_key)
    return np.asarray((_mix(word) >> np.uint64(64 - MANTISSA_BITS)) * 2.0**-MANTISSA_BITS)


def _weyl(number: int | Ints, key: np.uint64) -> Words:
    # An array even for one number: NumPy warns when scalars overflow, which is intended here.
    numbers: Words = np.atleast_1d(np.asarray(number)).astype(np.uint64)
    sequence: Words = numbers * GOLDEN + key
    return sequence


def _mix(word: Words) -> Words:
    """Mix the words in place, so that each bit depends on all bits, and return them."""
    word ^= word >> np.uint64(30)
    word *= MIX_1
    word ^= word >> np.uint64(27)
    word *= MIX_2
    word ^= word >> np.uint64(31)
    return word

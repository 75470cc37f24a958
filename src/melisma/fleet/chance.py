"""Chance by key: the order of calls decides nothing, nor who else is asked.

`generator` is for one purpose, cycle and learner. `uniform` is for many learners at once: a hash of
the key and the learner's number (two rounds of splitmix64; Steele, Lea and Flood 2014), so that one
learner by itself finds the number that it has among a million.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.channel import Floats, Ints

Words = NDArray[np.uint64]
# The constants of splitmix64.
GOLDEN, FIRST, SECOND = (
    np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Doubles between 0 and 1 that are equally far apart have this many bits.
BITS = 53
WORD = 1 << 32


def generator(seed: int, purpose: str, cycle: int = 0, learner: int = 0) -> np.random.Generator:
    """The generator of a run's seed for one purpose, cycle and learner."""
    key: tuple[int, ...] | NDArray[np.uint32] = (seed, crc32(purpose.encode()), cycle, learner)
    if max(key) < WORD:
        # The same words, and half the time: a simulation makes one for each learner and cycle.
        key = np.array(key, np.uint32)
    return np.random.default_rng(np.random.SeedSequence(key))


def uniform(seed: int, purpose: str, cycle: int, learners: Ints, draw: int | Ints = 0) -> Floats:
    """A number of at least 0 and below 1 for each learner, by seed, purpose, cycle and its number.

    `draw` counts the numbers of one learner, where it needs several. As an array it is broadcast
    against `learners`: a column of these and a row of draws give a table.
    """
    key = np.random.SeedSequence((seed, crc32(purpose.encode()), cycle))
    of_learner, of_draw = key.generate_state(2, np.uint64)
    word = _mixed(_counted(learners, of_learner)) + _counted(draw, of_draw)
    return np.asarray((_mixed(word) >> np.uint64(64 - BITS)) * 2.0**-BITS)


def _counted(number: int | Ints, key: np.uint64) -> Words:
    # One dimension at least: NumPy warns of scalars that wrap around, and here all do.
    return np.atleast_1d(np.asarray(number)).astype(np.uint64) * GOLDEN + key


def _mixed(word: Words) -> Words:
    """The words, changed in place so that each bit depends on all."""
    word ^= word >> np.uint64(30)
    word *= FIRST
    word ^= word >> np.uint64(27)
    word *= SECOND
    word ^= word >> np.uint64(31)
    return word

"""Random generators, each from its own key: the order of calls decides nothing."""

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str, cycle: int = 0, learner: int = 0) -> np.random.Generator:
    """The generator of a run's seed for one purpose, cycle and learner."""
    key = (seed, crc32(purpose.encode()), cycle, learner)
    return np.random.default_rng(np.random.SeedSequence(key))

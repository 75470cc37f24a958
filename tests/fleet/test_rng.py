import pickle  # noqa: TID251 - what is copied to processes of one's own
import time
from copy import deepcopy
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from melisma.fleet.array_types import Floats
from melisma.fleet.rng import Generators, generator, uniform

KEYS = [
    (1, "states", 0, 0),
    (2, "states", 0, 0),
    (1, "prices", 0, 0),
    (1, "states", 1, 0),
    (1, "states", 0, 1),
    (2**40 + 1, "states", 0, 0),
    (1, "", 0, 0),
]


def test_the_same_key_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    first = generator(7, "states", 3, 5).random(8)
    generator(7, "prices").random(1000)
    again = generator(7, "states", 3, 5)
    assert np.array_equal(again.random(3), first[:3])
    assert np.array_equal(again.random(5), first[3:])


@pytest.mark.parametrize(("one", "other"), list(combinations(KEYS, 2)))
def test_every_part_of_the_key_counts(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
) -> None:
    assert not np.any(generator(*one).random(100) == generator(*other).random(100))


def test_numbers_stay_the_same_from_version_to_version() -> None:
    drawn = generator(1, "fleet placement").bit_generator.random_raw(2)
    assert drawn.tolist() == [8002849172017870386, 15596246392116660858]


def test_neighbouring_learners_are_not_alike() -> None:
    drawn = np.array([generator(1, "states", 0, learner).normal() for learner in range(4000)])
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(1, abs=0.05)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(drawn.size)


def test_a_learner_has_its_number_whoever_else_is_asked() -> None:
    everyone = np.arange(1000)
    together = uniform(7, "sleep", 3, everyone)
    rng = np.random.default_rng(1)
    order = rng.permutation(1000)
    assert uniform(7, "sleep", 3, order).tolist() == together[order].tolist()
    alone = [float(uniform(7, "sleep", 3, np.array([learner]))[0]) for learner in range(50)]
    assert alone == together[:50].tolist()


def test_a_column_of_learners_and_a_row_of_draws_give_a_table() -> None:
    learners, draws = np.array([5, 0, 9]), np.arange(4)
    table = uniform(1, "sleep", 2, learners[:, None], draws)
    assert table.shape == (3, 4)
    for draw in draws.tolist():
        assert table[:, draw].tolist() == uniform(1, "sleep", 2, learners, draw).tolist()


def test_uniform_numbers_are_spread_evenly() -> None:
    drawn = uniform(1, "state", 0, np.arange(1_000_000))
    assert drawn.dtype == np.float64
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.unique(drawn).size == drawn.size
    expected = drawn.size / 256
    chi_square = np.sum((np.bincount((drawn * 256).astype(np.int64)) - expected) ** 2) / expected
    # 255 degrees of freedom: within five standard deviations.
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
    low_bits = (drawn * 2.0**53).astype(np.int64) % 256
    chi_square = np.sum((np.bincount(low_bits) - expected) ** 2) / expected
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


UNIFORMS = {
    "as is": (1, "state", 0, 0, 0),
    "another seed": (2, "state", 0, 0, 0),
    "a large seed": (2**40 + 1, "state", 0, 0, 0),
    "another purpose": (1, "sleep", 0, 0, 0),
    "the next cycle": (1, "state", 1, 0, 0),
    "the next learner": (1, "state", 0, 1, 0),
    "the next draw": (1, "state", 0, 0, 1),
}


@pytest.mark.parametrize(("one", "other"), list(combinations(UNIFORMS, 2)))
def test_uniform_numbers_of_different_keys_have_nothing_in_common(one: str, other: str) -> None:
    def drawn(which: str) -> Floats:
        seed, purpose, cycle, learner, draw = UNIFORMS[which]
        return uniform(seed, purpose, cycle, learner + np.arange(100_000), draw)

    assert abs(np.corrcoef(drawn(one), drawn(other))[0, 1]) < 5 / np.sqrt(100_000)


def test_uniform_numbers_stay_the_same_from_version_to_version() -> None:
    drawn = uniform(1, "state", 2, np.array([0, 1, 10**6]), 3)
    assert drawn.tolist() == [0.041115250919293134, 0.719240630707856, 0.8250023141360622]


def test_a_million_numbers_take_a_moment() -> None:
    learners = np.arange(1_000_000)
    began_s = time.process_time()
    uniform(1, "state", 0, learners)
    assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40])
@pytest.mark.parametrize("learners", [[], [0], [3, 1, 10**6], [2**32 - 1, 5], [2**32 + 1, 5]])
def test_generators_of_many_learners_are_those_of_each(seed: int, learners: list[int]) -> None:
    together = Generators(seed, "train", 4, np.array(learners, np.int64))
    for place, learner in enumerate(learners):
        one, alone = together.get(place), generator(seed, "train", 4, learner)
        assert one.random(5).tolist() == alone.random(5).tolist()
        words, expected = (each.bit_generator.seed_seq.generate_state(3) for each in (one, alone))
        assert words.tolist() == expected.tolist()


def test_a_generator_of_many_is_a_whole_one() -> None:
    def asked(rng: np.random.Generator) -> list[Any]:
        seed: Any = rng.bit_generator.seed_seq
        children = [child.random() for child in rng.spawn(2)]
        words = seed.generate_state(20), seed.generate_state(9, np.uint64)
        return [children, *(each.tolist() for each in words), seed.entropy, seed.spawn_key]

    def one() -> np.random.Generator:
        return Generators(1, "train", 3, np.array([9, 2])).get(1)

    alone = asked(generator(1, "train", 3, 2))
    for rng in (one(), deepcopy(one()), pickle.loads(pickle.dumps(one()))):
        assert asked(rng) == alone

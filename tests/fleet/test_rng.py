import pickle  # noqa: TID251 - generators are sent to worker processes
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


def test_the_same_key_gives_the_same_numbers_in_any_order_of_calls() -> None:
    first = generator(7, "states", 3, 5).random(8)
    generator(7, "prices").random(1000)
    again = generator(7, "states", 3, 5)
    assert np.array_equal(again.random(3), first[:3])
    assert np.array_equal(again.random(5), first[3:])


@pytest.mark.parametrize(("one", "other"), list(combinations(KEYS, 2)))
def test_every_part_of_the_key_changes_the_numbers(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
) -> None:
    assert not np.any(generator(*one).random(100) == generator(*other).random(100))


def test_numbers_are_the_same_in_every_version() -> None:
    drawn = generator(1, "fleet placement").bit_generator.random_raw(2)
    assert drawn.tolist() == [8002849172017870386, 15596246392116660858]


def test_neighbouring_learners_are_uncorrelated() -> None:
    drawn = np.array([generator(1, "states", 0, learner).normal() for learner in range(4000)])
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(1, abs=0.05)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(drawn.size)


def test_the_number_of_a_learner_does_not_depend_on_other_learners() -> None:
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
def test_uniform_numbers_of_different_keys_are_uncorrelated(one: str, other: str) -> None:
    def drawn(which: str) -> Floats:
        seed, purpose, cycle, learner, draw = UNIFORMS[which]
        return uniform(seed, purpose, cycle, learner + np.arange(100_000), draw)

    assert abs(np.corrcoef(drawn(one), drawn(other))[0, 1]) < 5 / np.sqrt(100_000)


def test_uniform_numbers_are_the_same_in_every_version() -> None:
    drawn = uniform(1, "state", 2, np.array([0, 1, 10**6]), 3)
    assert drawn.tolist() == [0.041115250919293134, 0.719240630707856, 0.8250023141360622]


def test_a_million_numbers_take_less_than_half_a_second() -> None:
    learners = np.arange(1_000_000)
    began_s = time.process_time()
    uniform(1, "state", 0, learners)
    assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40])
@pytest.mark.parametrize("learners", [[], [0], [3, 1, 10**6], [2**32 - 1, 5], [2**32 + 1, 5]])
def test_generators_of_many_learners_equal_those_of_single_learners(
    seed: int, learners: list[int]
) -> None:
    generators = Generators(seed, "train", 4, np.array(learners, np.int64))
    for index, learner in enumerate(learners):
        rng, single = generators.get(index), generator(seed, "train", 4, learner)
        assert rng.random(5).tolist() == single.random(5).tolist()
        words, expected = (g.bit_generator.seed_seq.generate_state(3) for g in (rng, single))
        assert words.tolist() == expected.tolist()


def test_a_generator_of_many_learners_can_be_spawned_copied_and_pickled() -> None:
    def results(rng: np.random.Generator) -> list[Any]:
        seed: Any = rng.bit_generator.seed_seq
        children = [child.random() for child in rng.spawn(2)]
        words = seed.generate_state(20), seed.generate_state(9, np.uint64)
        return [children, *(array.tolist() for array in words), seed.entropy, seed.spawn_key]

    def create() -> np.random.Generator:
        return Generators(1, "train", 3, np.array([9, 2])).get(1)

    expected = results(generator(1, "train", 3, 2))
    for rng in (create(), deepcopy(create()), pickle.loads(pickle.dumps(create()))):
        assert results(rng) == expected

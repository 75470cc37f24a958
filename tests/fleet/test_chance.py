from itertools import combinations

import numpy as np
import pytest

from melisma.fleet.chance import generator

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

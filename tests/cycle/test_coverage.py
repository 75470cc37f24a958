import numpy as np

from melisma.cycle.coverage import Coverage


def test_an_update_covers_the_attempts_up_to_its_own() -> None:
    coverage = Coverage(4, np.array([2, 0]), np.array([3, 1]))
    owners, attempts = np.array([0, 0, 2, 2, 2]), np.array([1, 2, 2, 3, 4])
    assert coverage.excludes(owners, attempts).tolist() == [False, True, False, False, True]


def test_without_an_update_nothing_is_excluded() -> None:
    coverage = Coverage(2, np.array([0]), np.array([0]))
    assert coverage.excludes(np.array([1, 0]), np.array([9, 1])).tolist() == [False, True]

from typing import Any

import pytest

from melisma.allocation.equal import equal
from melisma.errors import SettingError
from tests.allocation.problems import three_learners


def test_equal_shares_differ_by_at_most_one() -> None:
    assert equal(three_learners()).shards.tolist() == [5, 5, 4]
    assert equal(three_learners(train_s=[0.8, 0.2, 0.1])).shards.tolist() == [5, 5, 4]


def test_equal_allocates_even_if_no_learner_is_in_time() -> None:
    plan = equal(three_learners(deadline_s=0.1))
    assert plan.shards.tolist() == [5, 5, 4]
    assert not plan.updates.any()


def test_equal_without_passes_does_the_updates_that_fit() -> None:
    plan = equal(three_learners(deadline_s=4))
    assert plan.updates.tolist() == [6, 3, 1]
    assert equal(three_learners(deadline_s=3)).updates.tolist() == [4, 2, 0]


def test_equal_with_passes_may_miss_the_deadline() -> None:
    late = equal(three_learners(), passes=3).seconds(three_learners()) > 10
    assert late.tolist() == [False, False, True]


@pytest.mark.parametrize("passes", [0, -1, 2.5])
def test_equal_with_invalid_passes_is_an_error(passes: Any) -> None:
    with pytest.raises(SettingError, match="passes is"):
        equal(three_learners(), passes)

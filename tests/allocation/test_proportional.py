from typing import Any

import pytest

from melisma.allocation.proportional import proportional
from melisma.errors import SettingError
from tests.allocation.problems import three_learners


def test_proportional_shares_follow_speed() -> None:
    # Seconds a shard are 0.2, 0.3 and 0.9, so speeds are as 9 to 6 to 2.
    assert proportional(three_learners(shards=17)).shards.tolist() == [9, 6, 2]
    # With four passes 0.5, 0.9 and 3.3.
    assert proportional(three_learners(shards=20), passes=4).shards.tolist() == [12, 6, 2]


@pytest.mark.parametrize("passes", [0, -1, 2.5])
def test_proportional_with_invalid_passes_is_an_error(passes: Any) -> None:
    with pytest.raises(SettingError, match="passes is"):
        proportional(three_learners(), passes)

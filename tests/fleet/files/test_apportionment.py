import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet.files.apportionment import apportion

COUNTS = st.lists(st.integers(1, 10_000_000), min_size=1, max_size=12)


@given(counts=COUNTS, learners=st.integers(1, 10_000_000))
def test_all_are_handed_out_and_nobody_is_off_by_one_or_more(
    counts: list[int], learners: int
) -> None:
    wanted = apportion(counts, learners)
    assert sum(wanted) == learners
    total = sum(counts)
    assert all(
        abs(found * total - learners * count) < total
        for found, count in zip(wanted, counts, strict=True)
    )


@given(counts=COUNTS)
def test_a_file_keeps_its_counts_when_nothing_or_as_many_are_asked_for(counts: list[int]) -> None:
    assert apportion(counts, None) == counts
    if sum(counts) <= 10_000_000:
        assert apportion(counts, sum(counts)) == counts


@pytest.mark.parametrize(
    ("counts", "learners", "wanted"),
    [
        ([1, 1, 1], 2, [1, 1, 0]),
        ([1, 1, 1], 4, [2, 1, 1]),
        ([1, 500], 1, [0, 1]),
        ([1, 9], 1_000_000, [100_000, 900_000]),
        ([10, 60, 30], 5, [1, 3, 1]),
        ([3, 7], 5, [2, 3]),
    ],
)
def test_what_is_left_over_goes_to_the_largest_fractions_and_then_to_the_first(
    counts: list[int], learners: int, wanted: list[int]
) -> None:
    assert apportion(counts, learners) == wanted


@pytest.mark.parametrize("learners", [0, -1, 10_000_001])
def test_nobody_at_all_and_more_than_fit_are_refused(learners: int) -> None:
    with pytest.raises(SettingError, match=f"^{learners} learners requested; expected 1 to 100"):
        apportion([1, 2], learners)

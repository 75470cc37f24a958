import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet.files.apportionment import apportion

COUNTS = st.lists(st.integers(1, 10_000_000), min_size=1, max_size=12)


@given(counts=COUNTS, learners=st.integers(1, 10_000_000))
def test_counts_sum_to_the_total_and_differ_from_the_exact_share_by_less_than_1(
    counts: list[int], learners: int
) -> None:
    result = apportion(counts, learners)
    assert sum(result) == learners
    total = sum(counts)
    assert all(
        abs(actual * total - learners * count) < total
        for actual, count in zip(result, counts, strict=True)
    )


@given(counts=COUNTS)
def test_the_counts_of_the_file_are_the_default(counts: list[int]) -> None:
    assert apportion(counts, None) == counts
    if sum(counts) <= 10_000_000:
        assert apportion(counts, sum(counts)) == counts


@pytest.mark.parametrize(
    ("counts", "learners", "expected"),
    [
        ([1, 1, 1], 2, [1, 1, 0]),
        ([1, 1, 1], 4, [2, 1, 1]),
        ([1, 500], 1, [0, 1]),
        ([1, 9], 1_000_000, [100_000, 900_000]),
        ([10, 60, 30], 5, [1, 3, 1]),
        ([3, 7], 5, [2, 3]),
    ],
)
def test_the_remainder_goes_to_the_largest_fractions_and_then_to_the_first(
    counts: list[int], learners: int, expected: list[int]
) -> None:
    assert apportion(counts, learners) == expected


@pytest.mark.parametrize("learners", [0, -1, 10_000_001])
def test_numbers_of_learners_out_of_range_are_an_error(learners: int) -> None:
    with pytest.raises(SettingError, match=f"^{learners} learners requested; expected 1 to 100"):
        apportion([1, 2], learners)

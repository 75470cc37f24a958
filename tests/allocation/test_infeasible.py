import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.infeasible import format_rounded_up, infeasible_error


@given(st.floats(1e-20, 1e20))
def test_what_is_printed_is_enough(value: float) -> None:
    assert value <= float(format_rounded_up(value)) <= value * 1.0002


@pytest.mark.parametrize(
    ("nearest", "also", "said"),
    [
        ({"deadline_s": 1.00001}, [], "a deadline_s of 1.0001 would do"),
        (
            {"deadline_s": 2.0, "shards": 1234567},
            [],
            "a deadline_s of 2 or 1234567 shards would do",
        ),
        (
            {"shards": 3, "min_shards": 1},
            ["leaving them out"],
            "leaving them out, 3 shards or min_shards of 1 would do",
        ),
    ],
)
def test_a_refusal_says_what_would_do(
    nearest: dict[str, float], also: list[str], said: str
) -> None:
    error = infeasible_error(
        "it is late", constraint="deadline_s", miss=1.0, nearest=nearest, tasks=[2], also=also
    )
    assert str(error) == f"it is late; {said}"
    assert error.nearest == nearest
    assert (error.constraint, error.miss, error.learners, error.tasks) == (
        "deadline_s",
        1,
        (),
        (2,),
    )

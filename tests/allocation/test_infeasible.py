import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.infeasible import format_rounded_up, infeasible_error


@given(st.floats(1e-20, 1e20))
def test_the_printed_value_is_enough(value: float) -> None:
    assert value <= float(format_rounded_up(value)) <= value * 1.0002


@pytest.mark.parametrize(
    ("nearest", "also", "advice"),
    [
        ({"deadline_s": 1.00001}, [], "use deadline_s >= 1.0001"),
        (
            {"deadline_s": 2.0, "shards": 1234567},
            [],
            "use deadline_s >= 2 or shards = 1234567",
        ),
        (
            {"shards": 3, "min_shards": 1},
            ["leave them out"],
            "use shards = 3, min_shards = 1 or leave them out",
        ),
    ],
)
def test_the_message_names_the_changes_that_are_enough(
    nearest: dict[str, float], also: list[str], advice: str
) -> None:
    error = infeasible_error(
        "it is late", constraint="deadline_s", miss=1.0, nearest=nearest, tasks=[2], also=also
    )
    assert str(error) == f"it is late; {advice}"
    assert error.nearest == nearest
    assert (error.constraint, error.miss, error.learners, error.tasks) == (
        "deadline_s",
        1,
        (),
        (2,),
    )

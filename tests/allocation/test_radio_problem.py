from typing import Any

import numpy as np
import pytest

from melisma.allocation.radio_problem import RadioProblem
from melisma.errors import SettingError

FIELDS: dict[str, Any] = {
    "slope_s": [0.01, 0.02],
    "uplink_bps": [1e7, 2e7],
    "downlink_bps": 4e7,
    "gradient_bits": 1e6,
    "frame_s": 0.01,
    "apply_s": 0.1,
}


def test_scalars_apply_to_all_learners() -> None:
    p = RadioProblem(**FIELDS)
    assert p.learners == 2
    assert p.downlink_bps.tolist() == [4e7, 4e7]
    assert p.max_batch.tolist() == [128, 128]
    assert (p.gradient_bits, p.frame_s) == (1e6, 0.01)


def test_a_problem_is_immutable() -> None:
    slope_s = np.array([0.01, 0.02])
    p = RadioProblem(**FIELDS | {"slope_s": slope_s})
    slope_s[0] = 9.0
    assert p.slope_s[0] == 0.01
    with pytest.raises(ValueError, match="read-only"):
        p.slope_s[0] = 9.0


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("slope_s", [0.01, 0.0], r"slope_s\[1\] is 0.0; expected more than 0"),
        ("uplink_bps", -1.0, "uplink_bps is -1.0; expected more than 0"),
        ("downlink_bps", float("nan"), "downlink_bps is nan; expected a finite number"),
        ("gradient_bits", 0, "gradient_bits is 0; expected more than 0"),
        (
            "gradient_bits",
            [1e6, 1e6],
            "gradient_bits has shape .*; expected one number for all learners",
        ),
        ("frame_s", float("inf"), "frame_s is inf; expected a finite number"),
        ("apply_s", -0.1, "apply_s is -0.1; expected at least 0"),
        ("base_s", "quick", "base_s is 'quick'; expected a number"),
        ("threshold", 1.5, "threshold is 1.5; expected a whole number"),
        ("min_batch", 0, "min_batch is 0; expected at least 1"),
        ("max_batch", [128, 128, 128], "shapes differ"),
        ("apply_s", 1e61, "apply_s is 1e[+]61; expected at most 1e[+]30"),
        ("uplink_bps", 1e-60, "gradient_bits / uplink_bps is 1e[+]66 s for learner 0"),
        ("downlink_bps", [1e7, 1e300], r"downlink_bps\[1\] is 1e[+]300; expected at most 1e[+]30"),
    ],
)
def test_an_invalid_value_is_named(field: str, value: Any, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        RadioProblem(**FIELDS | {field: value})


def test_min_above_max_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"min_batch\[0\] is 9 \(and 1 more like it\)"):
        RadioProblem(**FIELDS, min_batch=[9, 10], max_batch=8)
    RadioProblem(**FIELDS, min_batch=[1, 8], max_batch=8)


def test_a_gradient_takes_the_papers_time_on_cpu_and_gpu() -> None:
    p = RadioProblem(**FIELDS, base_s=[0.0, 0.5], threshold=[0, 10])
    assert p.gradient_s(np.array([7, 7])).tolist() == pytest.approx([0.07, 0.5])
    assert p.gradient_s(np.array([20, 20])).tolist() == pytest.approx([0.2, 0.7])


def test_the_least_batch_fills_a_gpu() -> None:
    p = RadioProblem(**FIELDS, threshold=[4, 40], min_batch=6, max_batch=32)
    assert p.least_batch.tolist() == [6, 32]


def test_a_round_is_the_longest_way_up_and_the_longest_way_down() -> None:
    p = RadioProblem(**FIELDS)
    quarters = np.array([0.0025, 0.005])
    up_s = max(10 * 0.01 + 0.1 * 4, 10 * 0.02 + 0.05 * 2)
    down_s = 0.025 * 4 + 0.1
    batch = np.array([10, 10])
    assert p.round_s(batch, quarters, quarters) == pytest.approx(up_s + down_s)

import pytest

from melisma.allocation.med import levels, med
from melisma.errors import InfeasibleError
from tests.allocation.med.brute_force import least_sum
from tests.allocation.med.problems import problem_batch
from tests.lanes import cases


def test_bounds_are_valid_where_steps_replace_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in problem_batch(22)[: cases(15)]:
        best_s = least_sum(problem)
        with monkeypatch.context() as patch:
            patch.setattr(levels, "MAX_LEVELS", 8)
            if best_s is None:
                with pytest.raises(InfeasibleError):
                    med(problem)
            else:
                plan = med(problem)
                assert plan.total_s == pytest.approx(best_s, rel=1e-9)
                assert plan.gap <= 1e-9

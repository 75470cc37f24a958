import numpy as np
import pytest

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med.dual import guess_multipliers
from melisma.allocation.med.learner_classes import group_learners
from melisma.allocation.med.levels import earliest_levels


@pytest.mark.parametrize("budget", [0.0, 1e-6, 1.0])
def test_a_budget_far_too_small_leaves_multipliers_finite(budget: float) -> None:
    classes = group_learners(with_budget(instance(40, 3, 0), budget))
    guess = guess_multipliers(classes, earliest_levels(classes))
    assert np.isfinite(guess.multipliers.budget)
    assert np.all(np.isfinite(guess.multipliers.learner))

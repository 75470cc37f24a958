import numpy as np

from benchmarks.allocation.med_instances import instance
from melisma.allocation.med.learner_classes import group_learners
from melisma.allocation.med.rounding import round_assignments


def test_every_learner_is_assigned_once_until_stopped() -> None:
    classes = group_learners(instance(150, 4, 0))
    assignments = [
        assignment
        for _, assignment in round_assignments(classes, classes.deadline_s, lambda: False)
    ]
    assert assignments
    assert all(
        np.array_equal(assignment.sum(axis=0), classes.members) for assignment in assignments
    )
    assert not list(round_assignments(classes, classes.deadline_s, lambda: True))

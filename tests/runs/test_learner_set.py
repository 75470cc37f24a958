import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.runs.learner_set import LearnerSet

LEARNERS = st.lists(st.integers(0, 9), max_size=5)


def make_set(learners: list[int]) -> LearnerSet:
    learner_set = LearnerSet()
    learner_set.add(np.array(learners, np.int64))
    return learner_set


@given(LEARNERS, LEARNERS, LEARNERS)
def test_a_learner_set_behaves_like_a_set(
    first: list[int], added: list[int], removed: list[int]
) -> None:
    learners, expected = make_set(first), set(first)
    learners.add(np.array(added, np.int64))
    learners.discard(np.array(removed, np.int64))
    expected = (expected | set(added)) - set(removed)
    assert list(learners) == sorted(expected) == learners.numbers.tolist()
    assert (len(learners), bool(learners)) == (len(expected), bool(expected))
    assert [k in learners for k in range(12)] == [k in expected for k in range(12)]
    assert np.flatnonzero(learners.mask(15)).tolist() == sorted(expected)
    assert list(learners - make_set(first)) == sorted(expected - set(first))
    learners.clear()
    assert not learners

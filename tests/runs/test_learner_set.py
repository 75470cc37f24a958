import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.runs.learner_set import LearnerSet

SOME = st.lists(st.integers(0, 9), max_size=5)


def crowd(learners: list[int]) -> LearnerSet:
    made = LearnerSet()
    made.add(np.array(learners, np.int64))
    return made


@given(SOME, SOME, SOME)
def test_a_crowd_is_a_set(first: list[int], then: list[int], gone: list[int]) -> None:
    some, known = crowd(first), set(first)
    some.add(np.array(then, np.int64))
    some.discard(np.array(gone, np.int64))
    known = (known | set(then)) - set(gone)
    assert list(some) == sorted(known) == some.numbers.tolist()
    assert (len(some), bool(some)) == (len(known), bool(known))
    assert [k in some for k in range(12)] == [k in known for k in range(12)]
    assert np.flatnonzero(some.mask(15)).tolist() == sorted(known)
    assert list(some - crowd(first)) == sorted(known - set(first))
    some.clear()
    assert not some

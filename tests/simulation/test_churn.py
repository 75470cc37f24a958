import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.availability import SLEEP, WAKE, Changes
from melisma.simulation.churn import SleepSpans

spans = st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), max_size=5)


def changes(learners: list[list[tuple[float, float]]]) -> Changes:
    """Build changes from each learner's (awake, asleep) seconds in turn."""
    rows = []
    for learner, turns in enumerate(learners):
        now_s = 0.0
        for awake_s, asleep_s in turns:
            rows += [(now_s + awake_s, learner, SLEEP), (now_s + awake_s + asleep_s, learner, WAKE)]
            now_s += awake_s + asleep_s
    at_s, learner_ids, kinds = zip(*rows, strict=True) if rows else ((), (), ())
    part = Changes(
        np.array(at_s, float), np.array(learner_ids, np.int64), np.array(kinds, np.int64)
    )
    return Changes.merge([part])


def end_by_spans(turns: list[tuple[float, float]], begin_s: float, awake_s: float) -> float:
    """Walk through the spans of one device."""
    now_s, at_s, left_s = begin_s, 0.0, awake_s
    for wake_s, sleep_s in turns:
        from_s, to_s = at_s + wake_s, at_s + wake_s + sleep_s
        at_s = to_s
        if to_s <= now_s:
            continue
        before_s = max(0.0, from_s - now_s)
        # A sleeping device ends even empty work only when it wakes.
        if from_s > now_s and left_s <= before_s:
            return now_s + left_s
        left_s -= before_s
        now_s = to_s
    return now_s + left_s


@given(st.lists(spans, min_size=1, max_size=4), st.floats(0, 10), st.floats(0, 10))
def test_sleep_prolongs_work(
    learners: list[list[tuple[float, float]]], begin_s: float, awake_s: float
) -> None:
    sleep = SleepSpans(changes(learners), len(learners))
    learner_ids = np.arange(len(learners))
    count = len(learners)
    ends_s = sleep.end_s(learner_ids, np.full(count, begin_s), np.full(count, awake_s))
    expected = [end_by_spans(turns, begin_s, awake_s) for turns in learners]
    np.testing.assert_allclose(ends_s, expected)


def test_work_of_a_device_that_never_wakes_never_ends() -> None:
    asleep = Changes(np.array([2.0]), np.array([0]), np.array([SLEEP]))
    ends_s = SleepSpans(asleep, 1).end_s(np.array([0, 0]), np.zeros(2), np.array([1.0, 3.0]))
    assert ends_s.tolist() == [1.0, np.inf]

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.availability import SLEEP, WAKE, Changes
from melisma.simulation.sleep import SleepSpans

spans = st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), max_size=5)


def changes(learners: list[list[tuple[float, float]]]) -> Changes:
    """Awake and asleep in turn, for so long each."""
    rows = []
    for learner, turns in enumerate(learners):
        now_s = 0.0
        for awake_s, asleep_s in turns:
            rows += [(now_s + awake_s, learner, SLEEP), (now_s + awake_s + asleep_s, learner, WAKE)]
            now_s += awake_s + asleep_s
    at_s, who, what = zip(*rows, strict=True) if rows else ((), (), ())
    part = Changes(np.array(at_s, float), np.array(who, np.int64), np.array(what, np.int64))
    return Changes.joined([part])


def one_by_one(turns: list[tuple[float, float]], begin_s: float, awake_s: float) -> float:
    """In small steps of the device's own life."""
    now_s, at_s, left_s = begin_s, 0.0, awake_s
    for wake_s, sleep_s in turns:
        from_s, to_s = at_s + wake_s, at_s + wake_s + sleep_s
        at_s = to_s
        if to_s <= now_s:
            continue
        before_s = max(0.0, from_s - now_s)
        # Who is asleep already does nothing before it wakes, not even nothing.
        if from_s > now_s and left_s <= before_s:
            return now_s + left_s
        left_s -= before_s
        now_s = to_s
    return now_s + left_s


@given(st.lists(spans, min_size=1, max_size=4), st.floats(0, 10), st.floats(0, 10))
def test_what_takes_so_long_awake_takes_longer_by_the_sleep(
    learners: list[list[tuple[float, float]]], begin_s: float, awake_s: float
) -> None:
    sleep = SleepSpans(changes(learners), len(learners))
    who = np.arange(len(learners))
    found = sleep.end_s(who, np.full(who.size, begin_s), np.full(who.size, awake_s))
    expected = [one_by_one(turns, begin_s, awake_s) for turns in learners]
    np.testing.assert_allclose(found, expected)


def test_who_does_not_wake_is_never_done() -> None:
    asleep = Changes(np.array([2.0]), np.array([0]), np.array([SLEEP]))
    ends_s = SleepSpans(asleep, 1).end_s(np.array([0, 0]), np.zeros(2), np.array([1.0, 3.0]))
    assert ends_s.tolist() == [1.0, np.inf]

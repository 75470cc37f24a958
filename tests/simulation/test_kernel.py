from hypothesis import given
from hypothesis import strategies as st

from melisma.simulation.kernel import EventQueue


@given(st.lists(st.integers(0, 5), max_size=20))
def test_actions_run_by_time_then_in_the_order_of_scheduling(times: list[int]) -> None:
    queue, done = EventQueue(), list[tuple[float, int]]()
    for number, at_s in enumerate(times):
        queue.schedule(at_s, lambda number=number: done.append((queue.now_s, number)))  # type: ignore[misc]
    while queue.step():
        pass
    assert done == sorted((float(at_s), number) for number, at_s in enumerate(times))


def test_an_action_scheduled_for_the_past_runs_now() -> None:
    queue, seen = EventQueue(), list[float]()
    queue.schedule(5.0, lambda: queue.schedule(1.0, lambda: seen.append(queue.now_s)))
    while queue.step():
        pass
    assert seen == [5.0]


def test_the_clock_does_not_advance_past_the_next_action() -> None:
    queue = EventQueue()
    queue.schedule(2.0, lambda: None)
    queue.advance(3.0)
    assert queue.now_s == 2.0
    assert not EventQueue().step()

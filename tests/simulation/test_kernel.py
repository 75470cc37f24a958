from hypothesis import given
from hypothesis import strategies as st

from melisma.simulation.kernel import EventQueue


@given(st.lists(st.integers(0, 5), max_size=20))
def test_acts_come_by_their_instants_and_of_one_instant_as_they_were_added(at: list[int]) -> None:
    agenda, done = EventQueue(), list[tuple[float, int]]()
    for number, at_s in enumerate(at):
        agenda.schedule(at_s, lambda number=number: done.append((agenda.now_s, number)))  # type: ignore[misc]
    while agenda.step():
        pass
    assert done == sorted((float(at_s), number) for number, at_s in enumerate(at))


def test_what_is_added_for_the_past_happens_now() -> None:
    agenda, seen = EventQueue(), list[float]()
    agenda.schedule(5.0, lambda: agenda.schedule(1.0, lambda: seen.append(agenda.now_s)))
    while agenda.step():
        pass
    assert seen == [5.0]


def test_time_does_not_pass_what_comes_next() -> None:
    agenda = EventQueue()
    agenda.schedule(2.0, lambda: None)
    agenda.advance(3.0)
    assert agenda.now_s == 2.0
    assert not EventQueue().step()

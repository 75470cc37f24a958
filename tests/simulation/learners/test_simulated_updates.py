import numpy as np

from melisma.simulation.learners.simulated_updates import SimulatedUpdates


def make_updates(learners: int) -> SimulatedUpdates:
    """Updates whose phases have three axes, as many as a cost has parts; learners come first."""
    column, numbers = np.arange(learners), np.arange(learners, dtype=np.float64)
    phases = np.broadcast_to(numbers[:, None, None], (learners, 2, 5))
    costs = np.broadcast_to(numbers, (3, 3, learners))
    return SimulatedUpdates(
        indices=column,
        learners=column,
        attempts=column,
        ask_s=numbers,
        wanted=column,
        released=column,
        passes=column,
        arrived_visits=column,
        stops_s=numbers,
        arrives_s=numbers,
        batches=column,
        visits=column,
        shipped=column,
        phases=phases,
        costs=costs,
        measured=column > 0,
    )


def test_updates_are_chosen_by_learner_whatever_the_axes_of_a_column() -> None:
    chosen = make_updates(4).take(np.array([1, 3]))
    assert chosen.phases.shape == (2, 2, 5)
    assert chosen.phases[:, 0, 0].tolist() == chosen.costs[0, 0].tolist() == [1.0, 3.0]


def test_updates_are_joined_by_learner_whatever_the_axes_of_a_column() -> None:
    joined = SimulatedUpdates.concatenate([make_updates(2), make_updates(3)], count=5)
    assert joined.phases.shape == (5, 2, 5)
    assert joined.phases[:, 0, 0].tolist() == joined.costs[0, 0].tolist() == [0, 1, 0, 1, 2]

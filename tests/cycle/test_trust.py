"""Trust: who is checked how often, and that a wrong update or a missing answer costs all of it."""

from collections.abc import Sequence

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.snapshot import decode_state, encode_state
from melisma.cycle.state import CycleState, Stage, WorkStatus
from melisma.cycle.trust import (
    ALWAYS_CHECKED,
    challenged_segment,
    find_suspects,
    on_committed,
    record_checks,
)
from melisma.learning.verification.reexecution import Verdict
from melisma.testing import make_task

NO_GAP = np.nan


def training_state(learners: int = 3, secret: str = "secret") -> CycleState:
    machine = CycleMachine()
    task = make_task(verify="audit")
    machine.handle(
        events.TaskSubmitted(
            at_s=0.0,
            run="r",
            task=task,
            learner_count=learners,
            shard_samples=np.full(task.shards, task.shard_samples),
            secret=secret,
        )
    )
    state = machine.state
    state.stage = Stage.TRAINING
    state.learners.present[:] = True
    return state


def trust(state: CycleState, right: int) -> None:
    """Let all learners have been right this often, with the environment of `commit`."""
    state.learners.right[:] = right
    state.environments, state.learners.environments[:] = ["2, cpu"], 1


def commit(
    state: CycleState, cycle: int, learners: Sequence[int], environment: str = "2, cpu"
) -> commands.Challenge | None:
    """Let learners commit to an update of eight segments; return who is challenged."""
    state.cycle, state.stage, table = cycle, Stage.TRAINING, state.learners
    table.work[:], table.attempts[:] = WorkStatus.ASSIGNED, 1
    event = events.UpdatesCommitted(
        at_s=1.0,
        learners=np.array(learners),
        cycle=cycle,
        attempts=np.ones(len(learners), np.int64),
        segments=np.full(len(learners), 8),
        environments=(environment,) * len(learners),
    )
    issued = on_committed(state, event)
    assert len(issued) <= 1
    return issued[0] if issued else None  # type: ignore[return-value] # the only command


def decide(state: CycleState, cycle: int, learner: int, verdict: Verdict) -> None:
    record_checks(
        state,
        events.VerifiedUpdates(
            np.array([learner]), np.array([cycle]), np.array([int(verdict)]), np.array([NO_GAP])
        ),
    )


def earn_trust(state: CycleState, learner: int, cycles: int) -> int:
    """Let a learner be right in these cycles; return how often it was checked."""
    checks = 0
    for cycle in range(1, cycles + 1):
        if commit(state, cycle, [learner]) is not None:
            checks += 1
            decide(state, cycle, learner, Verdict.RIGHT)
    return checks


def test_the_first_ten_updates_are_checked_always() -> None:
    assert earn_trust(training_state(), 1, ALWAYS_CHECKED) == ALWAYS_CHECKED


def test_then_the_rate_is_one_over_the_number_right_in_a_row() -> None:
    state = training_state(400)
    trust(state, 20)
    challenge = commit(state, 1, range(400))
    assert challenge is not None
    assert 8 <= challenge.learners.size <= 36  # 20 expected
    assert set(challenge.segments.tolist()) <= set(range(8))


def test_a_wrong_update_begins_anew() -> None:
    state = training_state()
    earn_trust(state, 1, 10)
    assert state.learners.right[1] == ALWAYS_CHECKED
    state.learners.unanswered[1], state.learners.challenged[1] = 1, 50
    decide(state, 50, 1, Verdict.WRONG)
    assert state.learners.right[1] == 0


def test_a_check_without_a_result_changes_no_trust() -> None:
    state = training_state()
    earn_trust(state, 1, 5)
    commit(state, 6, [1])
    decide(state, 6, 1, Verdict.IMPOSSIBLE)
    assert state.learners.right[1] == 5
    assert not state.learners.unanswered[1]


def test_a_learner_that_leaves_when_it_is_challenged_loses_its_trust() -> None:
    state = training_state()
    trust(state, 1000)
    state.learners.suspected[1] = True  # so that it is challenged
    assert commit(state, 1, [1]) is not None
    state.learners.suspected[1] = False
    # It never uploads, and has no trust until an answer was right.
    assert commit(state, 2, [1]) is not None
    decide(state, 2, 1, Verdict.RIGHT)
    assert state.learners.right[1] == 1


def test_a_late_update_that_is_right_costs_no_trust() -> None:
    state = training_state()
    trust(state, 5)
    commit(state, 1, [1])
    commit(state, 2, [1])
    decide(state, 1, 1, Verdict.RIGHT)
    decide(state, 2, 1, Verdict.RIGHT)
    assert state.learners.right[1] == 7


def test_another_version_or_device_has_to_earn_its_own_trust() -> None:
    state = training_state()
    trust(state, 10**9)
    assert commit(state, 1, [0, 1]) is None
    challenge = commit(state, 2, [1], "2, cuda")
    assert challenge is not None
    assert challenge.learners.tolist() == [1]


def test_the_choice_follows_from_the_secret_and_from_nothing_else() -> None:
    chosen = []
    for secret in ("one", "one", "two"):
        state = training_state(200, secret)
        trust(state, 15)
        challenge = commit(state, 1, range(200))
        assert challenge is not None
        chosen.append((challenge.learners.tolist(), challenge.segments.tolist()))
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_commitment_to_an_unknown_assignment_is_ignored() -> None:
    state = training_state()
    state.cycle = 1
    event = events.UpdatesCommitted(
        at_s=1.0,
        learners=np.array([1]),
        cycle=7,
        attempts=np.array([1]),
        segments=np.array([8]),
        environments=("2, cpu",),
    )
    assert on_committed(state, event) == []
    assert challenged_segment(state, 1, 7) is None


def test_trust_survives_a_snapshot() -> None:
    state = training_state()
    earn_trust(state, 1, 12)
    commit(state, 13, [0, 2])
    copy = decode_state(encode_state(state))
    for name in ("right", "unanswered", "challenged", "segments", "environments", "suspected"):
        assert (getattr(copy.learners, name) == getattr(state.learners, name)).all()
    assert copy.environments == state.environments
    assert copy.secret == "secret"


def gaps_of(
    means: Sequence[float], updates: int = 5
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[m * updates for m in means], [updates] * len(means), [updates] * len(means)])


def test_a_learner_far_below_the_median_is_suspected() -> None:
    gaps = gaps_of([5.0, 6.0, 5.5, 0.0, 5.2])
    assert find_suspects(gaps, np.arange(5)).tolist() == [3]


@pytest.mark.parametrize("means", [[0.1, 0.2, 0.0, 0.1], [5.0, 5.5, 6.0, 4.5], [9.0, 0.0]])
def test_alike_learners_and_two_learners_are_not_suspected(means: list[float]) -> None:
    assert not find_suspects(gaps_of(means), np.arange(len(means))).size


def test_a_suspected_learner_is_checked_whatever_its_trust() -> None:
    state = training_state(4)
    trust(state, 10**9)
    verdicts, gaps = np.zeros(4, np.int64), np.array([20.0, 20.0, 20.0, 0.0])
    verified = events.VerifiedUpdates(np.arange(4), np.ones(4, np.int64), verdicts, gaps)
    (suspect,) = record_checks(state, verified)
    assert isinstance(suspect, commands.Suspect)
    assert suspect.learners.tolist() == [3]
    challenge = commit(state, 2, range(4))
    assert challenge is not None
    assert challenge.learners.tolist() == [3]
    decide(state, 2, 3, Verdict.RIGHT)
    assert commit(state, 3, range(4)) is None

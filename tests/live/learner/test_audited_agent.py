"""An agent whose updates are audited: what it commits to, and what it reveals."""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from melisma.fleet.rng import generator
from melisma.learning.batches import StreamChange
from melisma.learning.stream_log import GivenWork, replay_batches
from melisma.learning.verification.segments import SegmentStates, check_states, segment_edges
from melisma.live import protocol
from tests.live.learner.played_orchestrator import TASK, PlayedOrchestrator
from tests.live.learner.test_resuming_agent import Device, visits_of

AUDITED = replace(TASK, verify="audit")


class Challenger(PlayedOrchestrator):
    """Challenges a segment; forgets the first `forgotten` commitments, as after a restart."""

    segment: int | None = 2
    forgotten = 0

    def call(self, method: str, *args: Any, body_bytes: int = 0) -> Any:
        if method == "commit_update":
            self.calls.append((method, args))
            return self.segment
        if method == "upload_update" and self.forgotten:
            self.forgotten -= 1
            self.calls.append((method, args))
            return protocol.COMMIT_FIRST
        return super().call(method, *args, body_bytes=body_bytes)

    def arguments(self, method: str) -> list[tuple[Any, ...]]:
        return [args for name, args in self.calls if name == method]


def trained(tmp_path: Path, segment: int | None = 2, forgotten: int = 0) -> Challenger:
    """Let a learner train three shards twice, and return what it called."""
    device = Device(tmp_path, AUDITED)
    device.orchestrator = orchestrator = Challenger(AUDITED)
    orchestrator.segment, orchestrator.forgotten = segment, forgotten
    device.finish(orchestrator.train(0, 1, 2))
    return orchestrator


def commitment_of(orchestrator: Challenger) -> protocol.UpdateCommitment:
    return protocol.parse(orchestrator.arguments("commit_update")[0][1], protocol.UpdateCommitment)


def test_the_revealed_states_are_those_that_it_committed_to(tmp_path: Path) -> None:
    orchestrator = trained(tmp_path)
    commitment = commitment_of(orchestrator)
    _, _, update, revealed = orchestrator.arguments("upload_update")[0]
    states = SegmentStates.from_arrays(revealed)
    arrays = {name: np.array(array) for name, array in update.items()}
    assert check_states(states, commitment.digests, commitment.batches, 2, arrays) == ""
    assert len(commitment.digests) == len(segment_edges(commitment.batches))


def test_the_committed_changes_give_all_its_batches(tmp_path: Path) -> None:
    commitment = commitment_of(trained(tmp_path))
    changes = [StreamChange(c.batches, c.announced, c.arrived) for c in commitment.changes]
    rng = generator(AUDITED.seed, "train", 1, 0)
    works = [GivenWork(2, [0, 1, 2], [20, 20, 20])]
    batches = [*replay_batches(works, changes, AUDITED.batch, rng, repeat=False)]
    assert (len(batches), sum(map(len, batches))) == (commitment.batches, commitment.visits)
    assert commitment.visits == 120


def test_without_a_challenge_nothing_is_revealed(tmp_path: Path) -> None:
    orchestrator = trained(tmp_path, segment=None)
    assert [len(args) for args in orchestrator.arguments("upload_update")] == [3]


def test_it_commits_again_if_the_orchestrator_has_forgotten(tmp_path: Path) -> None:
    orchestrator = trained(tmp_path, forgotten=1)
    first, second = (args[1] for args in orchestrator.arguments("commit_update"))
    assert first == second
    assert len(orchestrator.arguments("upload_update")) == 2
    assert len(orchestrator.updates) == 1


def test_an_interrupted_training_begins_anew(tmp_path: Path) -> None:
    device = Device(tmp_path, AUDITED)
    device.orchestrator = orchestrator = Challenger(AUDITED)
    train = orchestrator.train(0, 1, 2)
    device.kill(5, train)
    _, update = device.finish(train)
    assert visits_of(update)[:3] == [2.0, 2.0, 2.0]
    assert commitment_of(orchestrator).visits == 120


def test_other_tasks_commit_to_nothing(tmp_path: Path) -> None:
    device = Device(tmp_path, TASK)
    device.orchestrator = orchestrator = Challenger(TASK)
    device.finish(orchestrator.train(0, 1))
    assert not orchestrator.arguments("commit_update")

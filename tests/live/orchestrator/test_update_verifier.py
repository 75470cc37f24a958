"""Commitments and checks at the orchestrator: honest updates are right, and commitments bind."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from melisma.cycle import commands, events
from melisma.errors import AxonError
from melisma.fleet.rng import generator
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import decode_shard
from melisma.learning.stream_log import ReportedChange
from melisma.learning.trainer import TrainingResult, TrainingState
from melisma.learning.verification.reexecution import Verdict
from melisma.learning.verification.segments import SegmentRecorder
from melisma.live import protocol
from tests.live import tiny_task
from tests.live.orchestrator.served_run import (
    TASK,
    Learners,
    ServedRun,
    join,
    poll_until,
    wait_until,
)

AUDITED = replace(TASK, model=f"{__name__}:Repeated", verify="audit", extension=False)


class Repeated(tiny_task.Linear):
    """Logistic regression whose whole state is its parameters."""

    def __init__(self, task: Any, **settings: Any) -> None:
        super().__init__(task, **settings)
        self._state: Any = None

    def train(self, parameters: Any, batches: Iterator[Split], rng: Any) -> Any:
        done, visits = {name: np.array(array) for name, array in parameters.items()}, 0
        self._state = done
        for batch in batches:
            done = super().train(done, iter([batch]), rng).parameters
            self._state, visits = done, visits + len(batch)
        return TrainingResult(done, visits, 0.5)

    def checkpoint(self) -> Any:
        return TrainingState(self._state, {}, 0, 0.0)

    def restore(self, state: Any) -> None:
        pass

    def trainable(self) -> list[str]:
        return ["weight", "bias"]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[tuple[ServedRun, Learners]]:
    run = ServedRun(tmp_path, AUDITED)
    run.orchestrator.start()
    async with run.serving() as learners:
        await join(learners, "a", "b")
        for learner in (0, 1):
            await poll_until(learners, learner, protocol.Train)
        yield run, learners
    run.close()


class Played:
    """The training of a learner, as it would do it, with another number of trained batches."""

    def __init__(self, run: ServedRun, learner: int, trained: int | None = None) -> None:
        self.recorder, trainer = SegmentRecorder(), Repeated(AUDITED)
        (dispatch,) = run.of(commands.Dispatch)
        row = dispatch.learners.tolist().index(learner)
        shards = [run.store.shard_path(n).read_bytes() for n in dispatch.shards[row].tolist()]
        stream = BatchStream(AUDITED.batch, generator(AUDITED.seed, "train", 1, learner))
        stream.add_work(1, [50] * len(shards))
        for content in shards:
            stream.add_shard(decode_shard(content))
        stream.close()

        def feed() -> Iterator[Split]:
            for batch in stream:
                self.recorder.record(stream.batches - 1, trainer)
                if trained is None or stream.batches <= trained:
                    yield batch
            self.recorder.record(stream.batches, trainer)

        result = trainer.train(trainer.initial(), feed(), stream.rng)
        self.batches, self.update = stream.batches, result.parameters
        self.commitment = protocol.UpdateCommitment(
            cycle=1,
            attempt=1,
            visits=stream.visits,
            batches=stream.batches,
            attempts=(1,),
            changes=tuple(
                ReportedChange(c.batches, c.announced, c.arrived) for c in stream.changes
            ),
            digests=self.recorder.digests(stream.batches, result.parameters),
            environment="numpy, cpu",
        )

    def header(self, visits: int | None = None) -> Any:
        visits = self.commitment.visits if visits is None else visits
        return protocol.to_builtins(
            protocol.UpdateHeader(
                cycle=1,
                attempt=1,
                visits=visits,
                planned_visits=visits,
                shipped=0,
                loss=0.5,
                phases=(0.0,) * 6,
            )
        )

    async def upload(self, remote: Any, learner: int) -> str:
        segment = await remote.commit_update(learner, protocol.to_builtins(self.commitment))
        assert segment is not None
        revealed = self.recorder.states(self.batches, segment).to_arrays()
        refused: str = await remote.upload_update(learner, self.header(), self.update, revealed)
        return refused


async def verdicts(run: ServedRun) -> dict[int, Verdict]:
    await wait_until(lambda: bool(run.of(events.Aggregated)))
    verified = run.of(events.Aggregated)[0].verified
    pairs = zip(verified.learners.tolist(), verified.verdicts.tolist(), strict=True)
    return {learner: Verdict(verdict) for learner, verdict in pairs}


async def test_an_honest_update_is_right_and_one_without_training_is_left_out(
    audited: tuple[ServedRun, Learners],
) -> None:
    run, remote = audited
    assert await Played(run, 0).upload(remote, 0) == ""
    assert await Played(run, 1, trained=0).upload(remote, 1) == ""
    assert await verdicts(run) == {0: Verdict.RIGHT, 1: Verdict.WRONG}
    (aggregated,) = run.of(events.Aggregated)
    assert (aggregated.guarded.tolist(), aggregated.scales.tolist()) == ([1], [0.0])
    assert aggregated.verified.reasons


async def test_more_visits_than_the_shards_give_are_wrong(
    audited: tuple[ServedRun, Learners],
) -> None:
    run, remote = audited
    honest, boasting = Played(run, 0), Played(run, 1)
    boasting.commitment = replace(boasting.commitment, visits=boasting.commitment.visits + 32)
    await honest.upload(remote, 0)
    await boasting.upload(remote, 1)
    assert (await verdicts(run))[1] is Verdict.WRONG


async def test_a_learner_that_reveals_nothing_is_wrong(audited: tuple[ServedRun, Learners]) -> None:
    run, remote = audited
    played = Played(run, 1)
    await Played(run, 0).upload(remote, 0)
    await remote.commit_update(1, protocol.to_builtins(played.commitment))
    await remote.upload_update(1, played.header(), played.update)
    assert (await verdicts(run))[1] is Verdict.WRONG


async def test_a_commitment_binds(audited: tuple[ServedRun, Learners]) -> None:
    run, remote = audited
    played, message = Played(run, 0), protocol.to_builtins
    segment = await remote.commit_update(0, message(played.commitment))
    assert await remote.commit_update(0, message(played.commitment)) == segment
    assert len(run.of(events.UpdatesCommitted)) == 1
    with pytest.raises(AxonError, match="has committed to another training before"):
        await remote.commit_update(0, message(Played(run, 0, trained=0).commitment))
    with pytest.raises(AxonError, match="the update has 7 visits, its commitment"):
        await remote.upload_update(0, played.header(7), played.update)


async def test_an_update_without_a_commitment_is_sent_back(
    audited: tuple[ServedRun, Learners],
) -> None:
    run, remote = audited
    played = Played(run, 0)
    refused = await remote.upload_update(0, played.header(), played.update)
    assert refused == protocol.COMMIT_FIRST
    assert not run.of(events.UpdatesReceived)
    assert await played.upload(remote, 0) == ""


async def test_a_commitment_to_an_unknown_assignment_has_no_challenge(
    audited: tuple[ServedRun, Learners],
) -> None:
    run, remote = audited
    other = msgspec.structs.replace(Played(run, 0).commitment, cycle=9)
    assert await remote.commit_update(0, protocol.to_builtins(other)) is None
    assert not run.of(events.UpdatesCommitted)

"""Agents that continue the work of one that was killed, and that ignore repeated instructions."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save

from melisma.fleet.rng import generator
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batches import batches_of
from melisma.learning.data.shards import concatenate
from melisma.learning.trainer import TrainingResult
from melisma.live import protocol
from melisma.live.learner import training_spool
from melisma.live.learner.agent import Agent
from melisma.live.learner.connection import Connection
from melisma.live.learner.learner_settings import LearnerSettings
from tests.live.learner import counting_task
from tests.live.learner.counting_task import Counting, Forgetful, KilledError
from tests.live.learner.played_orchestrator import ANSWER_S, TASK, PlayedOrchestrator

NEVER = -1
FILE = training_spool.TRAINING_FILE


@pytest.fixture(autouse=True)
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save before every batch, and wait until it is written."""
    monkeypatch.setattr(training_spool, "SAVE_S", 0.0)
    monkeypatch.setattr(training_spool, "MAX_FRACTION", np.inf)
    monkeypatch.setattr(training_spool, "MAX_BYTES_PER_S", np.inf)
    original = training_spool.TrainingSpool.save

    def save_and_flush(self: training_spool.TrainingSpool, *args: Any) -> None:
        original(self, *args)
        assert self.flush()

    monkeypatch.setattr(training_spool.TrainingSpool, "save", save_and_flush)


class Learner:
    """An agent in a thread, with the cache and the spool of its device."""

    def __init__(self, folder: Path, orchestrator: PlayedOrchestrator, session: str) -> None:
        settings = LearnerSettings(
            name="a",
            orchestrator=(),
            cache=str(folder / "cache"),
            spool=str(folder / "spool"),
            allowed_modules=(counting_task.__name__,),
            local_data=str(folder / "data") if orchestrator.task.mode == "federated" else None,
        )
        connection = cast(Connection, orchestrator)
        self.agent = Agent(settings, connection, orchestrator.registered(), session)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, kill_at: int = NEVER) -> "Learner":
        self.agent._trainer.kill_at = kill_at  # type: ignore[attr-defined]
        self._thread.start()
        return self

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive()
        assert self.agent._spool.flush()

    def _run(self) -> None:
        try:
            self.agent.run()
        except Exception as error:  # noqa: BLE001 - of a test
            self.error = error


class Device:
    """One device whose learner is killed and replaced."""

    def __init__(self, folder: Path, task: Task = TASK) -> None:
        self.folder, self.orchestrator = folder, PlayedOrchestrator(task)
        self._sessions = 0

    def learner(self) -> Learner:
        self._sessions += 1
        session = f"session-{self._sessions}"
        self.orchestrator.start_session(session)
        return Learner(self.folder, self.orchestrator, session)

    def kill(self, kill_at: int, *instructions: protocol.AnyInstruction) -> Learner:
        """Give a learner work, and end it before a batch."""
        learner = self.learner()
        self.orchestrator.put(*instructions)
        learner.start(kill_at).join()
        assert isinstance(learner.error, KilledError)
        return learner

    def finish(self, *instructions: protocol.AnyInstruction) -> Any:
        """Let a new learner finish work and leave; return its only update."""
        learner = self.learner()
        self.orchestrator.put(*instructions, protocol.Leave())
        learner.start().join()
        assert learner.error is None
        (update,) = self.orchestrator.updates
        return update


def uninterrupted(orchestrator: PlayedOrchestrator, *numbers: int) -> TrainingResult:
    """Return the result of one training on these shards."""
    rng, trainer = generator(orchestrator.task.seed, "train", 1, 0), Counting(orchestrator.task)
    samples = concatenate([orchestrator.splits[number] for number in numbers])
    return trainer.train(trainer.initial(), batches_of(samples, 2, TASK.batch, rng), rng)


def visits_of(arrays: Any) -> list[float]:
    """Return the visits of each shard, whose samples have equal ones."""
    by_shard = arrays["visits"].reshape(12, 20)
    assert (by_shard == by_shard[:, :1]).all()
    return cast(list[float], by_shard[:, 0].tolist())


@pytest.mark.parametrize("kill_at", [1, 2, 5, 8, 9, 16, 17])
def test_a_training_that_was_interrupted_at_any_batch_equals_one_that_was_not(
    tmp_path: Path, kill_at: int
) -> None:
    device = Device(tmp_path)
    train = device.orchestrator.train(3, 1, 4)
    device.kill(kill_at, train)
    assert (tmp_path / "spool" / FILE).exists()
    header, arrays = device.finish(replace(train, seconds_left=300.0))
    expected = uninterrupted(device.orchestrator, 3, 1, 4)
    assert (header.visits, header.planned_visits, header.loss) == (120, 120, expected.loss)
    assert (header.cycle, header.attempt, header.shipped) == (1, 1, 3)
    assert np.array_equal(arrays["visits"], expected.parameters["visits"])
    assert np.array_equal(arrays["order"], expected.parameters["order"])
    # The time between the two is that of waiting.
    assert header.phases[0] == pytest.approx(300.0, abs=60.0)
    assert not (tmp_path / "spool" / FILE).exists()


def test_a_training_is_interrupted_many_times(tmp_path: Path) -> None:
    device = Device(tmp_path)
    train = device.orchestrator.train(3, 1, 4)
    for _ in range(5):
        device.kill(3, train)
    header, arrays = device.finish(train)
    expected = uninterrupted(device.orchestrator, 3, 1, 4)
    assert header.visits == 120
    assert np.array_equal(arrays["order"], expected.parameters["order"])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kill_at", [2, 10, 14, 20])
def test_shards_that_were_taken_back_are_not_trained_and_extensions_are(
    tmp_path: Path, overlap: bool, kill_at: int
) -> None:
    """Two extensions are known to the former learner, and one only to its successor."""
    device = Device(tmp_path, replace(TASK, overlap=overlap, extension=True, deadline_s=3.0))
    orchestrator = device.orchestrator
    first = orchestrator.train(0, 1, 2, seconds_left=600.0)
    device.kill(kill_at, first, orchestrator.extend(2, 3, 4), orchestrator.extend(3, 5))
    before = device.learner().agent._spool._training
    assert before is not None
    made = before.state.parameters["visits"].reshape(12, 20).copy()
    rest = replace(first, shards=first.shards[1:], seconds_left=2.0)
    header, arrays = device.finish(rest, orchestrator.extend(2, 3), orchestrator.extend(4, 6, 7))
    visits = arrays["visits"].reshape(12, 20)
    for taken_back in (0, 4, 5):
        assert np.array_equal(visits[taken_back], made[taken_back])
    # Further passes, until the deadline, are no planned visits.
    for number in (1, 2, 3, 6, 7):
        assert visits[number].min() >= 2
    assert not visits[8:].any()
    assert header.visits == visits.sum()
    assert header.planned_visits == 2 * 100 + made[[0, 4, 5]].sum()
    assert header.attempt == 4


def test_a_learner_begins_anew_without_a_shard_that_it_had_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(tmp_path)
    device.kill(5, device.orchestrator.train(0, 1))
    (tmp_path / "cache" / device.orchestrator.shards[1].sha256).unlink()
    header, arrays = device.finish(device.orchestrator.train(0, 1))
    assert visits_of(arrays) == [2, 2, *[0] * 10]
    assert header.visits == 80
    assert header.phases[0] < 60.0
    lines = capsys.readouterr().err.splitlines()
    (note,) = [line for line in lines if not line.startswith("batch")]
    assert note == "cycle 1 begins anew: its saved training: shard 1 is no longer in the cache"


def test_a_learner_goes_on_without_a_shard_that_was_taken_back(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.kill(9, device.orchestrator.train(0, 1))
    (tmp_path / "cache" / device.orchestrator.shards[1].sha256).unlink()
    header, arrays = device.finish(device.orchestrator.train(0))
    assert (arrays["visits"][:20] == 2).all()
    assert header.visits == header.planned_visits == arrays["visits"].sum() > 40


@pytest.mark.parametrize("reason", ["attempt", "cycle", "model", "run", "task", "broken", "layout"])
def test_another_assignment_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    device = Device(tmp_path)
    device.kill(5, device.orchestrator.train(0, 1))
    if reason == "run":
        device.orchestrator.run = "r2"
    elif reason == "task":
        device.orchestrator.task = replace(TASK, batch=5)
    elif reason == "broken":
        monkeypatch.setattr(Counting, "broken", True)
    elif reason == "layout":
        larger: dict[str, Any] = {"visits": np.zeros(240, np.float32), "order": np.zeros(1)}
        monkeypatch.setattr(Counting, "initial", lambda _: larger)
        device.orchestrator.files["model-1.safetensors"] = save(larger)
    changes: dict[str, Any] = {"attempt": {"attempt": 3}, "cycle": {"cycle": 2}}.get(reason, {})
    if reason == "model":
        content = device.orchestrator.files["model-1.safetensors"]
        device.orchestrator.files["model-2.safetensors"] = content
        changes = {"model": "model-2.safetensors"}
    header, arrays = device.finish(device.orchestrator.train(0, 1, **changes))
    assert visits_of(arrays) == [2, 2, *[0] * 10]
    assert header.visits == header.planned_visits == 80


def test_a_trainer_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    device = Device(tmp_path, replace(TASK, model=f"{counting_task.__name__}:Forgetful"))
    learner = device.kill(5, device.orchestrator.train(0, 1))
    assert type(learner.agent._trainer) is Forgetful
    assert not (tmp_path / "spool" / FILE).exists()
    header, arrays = device.finish(device.orchestrator.train(0, 1))
    assert visits_of(arrays) == [2, 2, *[0] * 10]
    assert header.visits == 80


@pytest.mark.parametrize("is_changed", [False, True])
def test_training_on_data_of_the_device_continues_unless_the_data_has_changed(
    tmp_path: Path, is_changed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(tmp_path, replace(TASK, mode="federated", scheme="equal"))
    (tmp_path / "data").mkdir()
    (samples, labels), _ = counting_task.make_data()
    np.save(tmp_path / "data" / "samples.npy", samples)
    np.save(tmp_path / "data" / "labels.npy", labels)
    train = replace(device.orchestrator.train(), local_shards=(0, 5))
    device.kill(4, train)
    if is_changed:
        np.save(tmp_path / "data" / "samples.npy", samples + 1)
    header, arrays = device.finish(train)
    assert header.visits == header.planned_visits == 80
    assert sorted(arrays["visits"].tolist()) == [0.0] * 200 + [2.0] * 40
    # The batches of both processes: 12 make two passes.
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("batch") for line in lines) == 12 + 4 * is_changed
    expected = ["cycle 1 begins anew: its saved training: shard 0 has other samples now"]
    assert [line for line in lines if not line.startswith("batch")] == expected * is_changed


def test_work_without_time_left_is_uploaded_as_it_was_saved(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.kill(5, device.orchestrator.train(0, 1))
    header, arrays = device.finish(device.orchestrator.train(0, 1, seconds_left=0.0))
    assert header.visits == arrays["visits"].sum() == 5 * TASK.batch


def test_a_saved_training_outlives_an_upload_that_fails_but_not_its_withdrawal(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path)
    device.orchestrator.failure = ConnectionError("no answer")
    learner = device.learner()
    device.orchestrator.put(device.orchestrator.train(0, 1))
    learner.start().join()
    assert isinstance(learner.error, ConnectionError)
    assert (tmp_path / "spool" / FILE).exists()
    device.orchestrator.failure = None
    learner = device.learner()
    device.orchestrator.put(protocol.StopTraining(1, 1), protocol.Leave())
    learner.start().join()
    assert not (tmp_path / "spool" / FILE).exists()


def test_repeated_instructions_are_ignored(tmp_path: Path) -> None:
    """They arrive while the assignment is trained, and after its update was received."""
    device = Device(tmp_path, replace(TASK, extension=True, deadline_s=3.0))
    orchestrator = device.orchestrator
    learner, first = device.learner(), orchestrator.train(0, 1, seconds_left=3.0)
    extensions = orchestrator.extend(2, 2), orchestrator.extend(3, 3, 4)
    received: list[str] = []
    original = learner.agent._fetcher.fetch_ahead

    def fetch_ahead(shards: Sequence[protocol.ShardRef]) -> None:
        received.append("ahead")
        original(shards)

    learner.agent._fetcher.fetch_ahead = fetch_ahead  # type: ignore[method-assign]
    orchestrator.put(first, *extensions)
    learner.start()
    orchestrator.wait_for(lambda: [m for m, _ in orchestrator.calls].count("poll") >= 2)
    orchestrator.put(replace(first, seconds_left=500.0), *reversed(extensions), *extensions)
    orchestrator.wait_for(lambda: orchestrator.updates)
    orchestrator.put(first, *extensions)
    orchestrator.wait_for(lambda: [m for m, _ in orchestrator.calls].count("poll") >= 4)
    orchestrator.put(protocol.Leave())
    learner.join()
    ((header, arrays),) = orchestrator.updates
    assert header.planned_visits == 2 * 100
    assert header.attempt == 3
    assert arrays["visits"][:100].min() >= 2
    assert not arrays["visits"][100:].any()
    assert received == ["ahead"] * 2  # for the assignment, and to leave


def test_a_shard_that_was_released_before_is_released_again(tmp_path: Path) -> None:
    device = Device(tmp_path)
    orchestrator = device.orchestrator
    device.kill(5, orchestrator.train(0, 1))
    orchestrator.put(orchestrator.train(0, 1, 2), protocol.Leave())
    device.learner().start().join()
    orchestrator.wait_for(lambda: any(m == "release_shards" for m, _ in orchestrator.calls))
    (released,) = [args[1:] for method, args in orchestrator.calls if method == "release_shards"]
    assert released == (1, [2])
    ((header, arrays),) = orchestrator.updates
    assert visits_of(arrays) == [2, 2, *[0] * 10]
    assert header.planned_visits == 80


def test_costs_of_the_former_process_answer_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(tmp_path)
    orchestrator = device.orchestrator
    bound = protocol.ComputeBound(1, 600.0, 0)
    for number in range(2):
        learner = device.learner()
        orchestrator.put(protocol.RunBenchmark(5.0), bound, protocol.Leave())
        learner.start().join()
        assert learner.error is None
        reported = [args for method, args in orchestrator.calls if method == "report_costs"]
        assert len(reported) == number + 1
        if number == 0:
            # The run has not ended for this device, which is what `clear` would be for.
            assert learner.agent._costs is not None
            learner.agent._spool.save_costs(learner.agent._costs)
            assert learner.agent._spool.flush()
            monkeypatch.setattr(Agent, "_measure", None)
    first, second = reported
    assert first[1] == second[1]
    bounds = [args[-1] for method, args in orchestrator.calls if method == "report_bound"]
    assert bounds[0] == bounds[1] > 0


# The state of an optimizer that a task keeps.


def keeping(*, keep: bool = True) -> Task:
    settings = OptimizerSettings(lr=0.1, keep=keep)
    return replace(TASK, model=f"{counting_task.__name__}:Keeping", optimizer=settings)


def kill_in_second_cycle(device: Device) -> Learner:
    """Let a learner finish the few batches of a first cycle, and end it in the second."""
    first = device.orchestrator.train(0)
    second = replace(device.orchestrator.train(*range(12)), cycle=2)
    return device.kill(10, first, second)


def trainings(learner: Learner) -> int:
    return cast(counting_task.Keeping, learner.agent._trainer).trainings


def test_a_kept_optimizer_outlasts_the_process_of_its_learner(tmp_path: Path) -> None:
    device = Device(tmp_path, keeping())
    assert trainings(kill_in_second_cycle(device)) == 1
    assert trainings(device.learner()) == 1


def test_an_optimizer_that_is_not_kept_is_not_saved(tmp_path: Path) -> None:
    device = Device(tmp_path, keeping(keep=False))
    kill_in_second_cycle(device)
    assert trainings(device.learner()) == 0
    assert not (tmp_path / "spool" / training_spool.OPTIMIZER_FILE).exists()


@pytest.mark.parametrize("cause", ["damaged", "refused", "failing"])
def test_an_optimizer_that_cannot_be_restored_begins_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: str,
) -> None:
    device = Device(tmp_path, keeping())
    if cause == "refused":
        state = {"others": np.zeros(1)}
        monkeypatch.setattr(counting_task.Keeping, "optimizer_state", lambda _self: state)
    kill_in_second_cycle(device)
    if cause == "failing":
        monkeypatch.setattr(counting_task.Keeping, "broken", True)
    path = tmp_path / "spool" / training_spool.OPTIMIZER_FILE
    if cause == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    assert trainings(device.learner()) == 0
    shown = {
        "damaged": "its content does not have the hash that was written with it",
        "refused": "the optimizer begins anew: the saved optimizer has no trainings",
        "failing": "the optimizer begins anew: ZeroDivisionError",
    }
    assert shown[cause] in capsys.readouterr().err


def test_the_optimizer_is_forgotten_when_the_run_ends(tmp_path: Path) -> None:
    device = Device(tmp_path, keeping())
    device.finish(device.orchestrator.train(0))
    assert [*(tmp_path / "spool").iterdir()] == []

"""Runs that are resumed: what goes on, what is refused, and what is left on disk."""

import os
import re
import shutil
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import melisma
from melisma.cycle import commands, events
from melisma.cycle.state import CycleState
from melisma.errors import DataError, SettingError
from melisma.live import resuming, training
from melisma.live.orchestrator.full_disk import wait_for_space
from melisma.live.orchestrator.run_journal import ClockReading
from melisma.live.preparation import prepare
from melisma.live.resume_preparation import prepare_resumption
from melisma.live.run_resumption import NewGoal
from melisma.runs.folder import JOURNAL_FILE
from melisma.runs.interruption import Cancellation
from melisma.runs.journal import Journal
from melisma.runs.trace import Step, read_trace
from tests.live import tiny_task
from tests.live.orchestrator.served_run import GOOD_UPDATE
from tests.live.orchestrator.stored_run import begin_cycle, close_cycle, make_store
from tests.simulation.scenarios import make_fleet, make_task

TINY = {
    "model": "tests.live.tiny_task:Linear",
    "data": "tests.live.tiny_task:blobs",
    "model_args": {"pause_s": 0.005},
    "scheme": "equal",
    "passes": 1,
    "sizes": {},
    "cycles": 2,
    "deadline_s": 20.0,
    "shard_samples": 50,
    "extension": False,
}


def run_tiny(folder: Path, watch: Callable[[Step], None] = lambda _: None, **changes: Any) -> Any:
    task = make_task(**(TINY | changes))
    prepared = prepare(task, make_fleet(), folder=folder)
    return training.run(prepared, watch=watch)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two cycles that has ended."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    run_tiny(folder)
    return folder


@pytest.fixture
def copy(ended: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(ended, tmp_path / "run"))


def dispatched(folder: Path) -> list[int]:
    steps = read_trace(folder / "trace.jsonl")
    return [c.cycle for s in steps for c in s.commands if isinstance(c, commands.Dispatch)]


def test_an_ended_run_goes_on_to_more_cycles(ended: Path, copy: Path) -> None:
    before = load_file(copy / "model.safetensors")
    report = melisma.resume(copy, cycles=3, say=lambda _: None)
    assert report.outcome == "finished"
    assert dispatched(copy) == [1, 2, 3]
    # Its devices use the folder where it is now, which is cleaned up.
    assert not (ended / "devices").exists()
    assert not (copy / "devices").exists()
    after = load_file(copy / "model.safetensors")
    assert not np.array_equal(before["weight"], after["weight"])
    with pytest.raises(SettingError, match="ended after cycle 3: use --cycles N with N > 3"):
        melisma.resume(copy)


def test_an_ended_run_goes_on_from_another_model(copy: Path) -> None:
    path = copy.parent / "zeros.safetensors"
    arrays = load_file(copy / "model.safetensors")
    save_file({name: np.zeros_like(array) for name, array in arrays.items()}, path)
    prepared, setup = prepare_resumption(copy, NewGoal(cycles=3), path)
    assert setup.fleet is not None
    started: list[Any] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, events.TaskContinued):
            started.append(load_file(copy / "parameters" / f"model-{step.event.model}.safetensors"))

    training.run(prepared, watch=watch)
    ((start),) = started
    assert not start["weight"].any()


@pytest.mark.parametrize(
    ("goal", "start", "problem"),
    [
        (NewGoal(cycles=2), None, "use --cycles N with N > 2"),
        (NewGoal(cycles=2, if_ended=True), None, "use cycles = N in the task with N > 2"),
        (NewGoal(total_s=9.0), None, "this one has cycles of 20 s: use --cycles N"),
        (NewGoal(cycles=9), "missing", "there is no such file"),
    ],
)
def test_what_cannot_go_on_is_refused_and_nothing_changes(
    copy: Path, goal: NewGoal, start: str | None, problem: str
) -> None:
    before = (copy / "journal.db").read_bytes()
    with pytest.raises(SettingError, match=problem):
        prepare_resumption(copy, goal, start)
    assert (copy / "journal.db").read_bytes() == before
    # The folder is free again.
    Journal.open(copy).close()


def test_a_run_that_was_killed_at_its_end_is_cleaned_up(copy: Path) -> None:
    for name in ("shards", "devices", "updates"):
        (copy / name).mkdir()
        (copy / name / "left").write_bytes(b"of the process that was killed")
    (copy / "picture.svg").unlink()
    with pytest.raises(SettingError, match="use --cycles N"):
        melisma.resume(copy)
    assert not {"shards", "devices", "updates"} & {path.name for path in copy.iterdir()}
    assert (copy / "picture.svg").is_file()


@pytest.mark.parametrize("total_s", [0.0, -5.0, nan, inf])
def test_a_run_does_not_go_on_for_no_time_or_without_end(total_s: float) -> None:
    task = make_task(total_s=30.0)
    submitted = events.TaskSubmitted(
        at_s=0.0, run="r", task=task, learner_count=1, shard_samples=np.full(2, 50), ends_s=30.0
    )
    state = CycleState.from_submission(submitted)
    with pytest.raises(SettingError, match="use --total with more than 0 seconds"):
        NewGoal(total_s=total_s).event(state, 1, None)
    assert NewGoal(total_s=9.0).event(state, 1, None).ends_s == 9.0


def test_damaged_parameters_are_named_and_another_model_helps(copy: Path) -> None:
    (path,) = (p for p in (copy / "parameters").iterdir() if p.name != "model-0.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # not through the link, which is the trained model
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged: .* melisma resume --from MODEL"):
        melisma.resume(copy, cycles=3, say=lambda _: None)
    model = copy.parent / "good.safetensors"
    shutil.copy(copy / "model.safetensors", model)
    assert melisma.resume(copy, cycles=3, start=model, say=lambda _: None).outcome == "finished"


def test_a_journal_that_cannot_be_used_is_named_with_a_way_to_go_on(copy: Path) -> None:
    model, content = copy / "model.safetensors", (copy / JOURNAL_FILE).read_bytes()
    for size, problem in ((len(content) // 2, "is damaged"), (0, "is not the journal of a run")):
        (copy / JOURNAL_FILE).write_bytes(content[:size])
        with pytest.raises(DataError, match=f"{problem}.* --start {re.escape(str(model))}"):
            melisma.resume(copy, cycles=3)
    model.unlink()
    with pytest.raises(DataError, match=r"is not the journal of a run$"):
        melisma.resume(copy, cycles=3)


def test_a_folder_that_cannot_be_used_is_named_with_what_to_do(copy: Path) -> None:
    (copy / "journal.db-wal").mkdir()
    with pytest.raises(DataError, match=r"cannot use .*journal\.db: .* melisma resume"):
        prepare_resumption(copy, NewGoal(cycles=3))


def test_other_data_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.live.tiny_task.blobs", other_blobs)
    before = sorted(copy.rglob("*"))
    with pytest.raises(SettingError, match="is not that of the run"):
        melisma.resume(copy, cycles=3, say=lambda _: None)
    assert sorted(copy.rglob("*")) == before


def test_data_or_a_model_of_another_size_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.live.tiny_task.blobs", few_blobs)
    with pytest.raises(SettingError, match=r"blobs is not that of the run: it has 5 training samp"):
        melisma.resume(copy, cycles=3, say=lambda _: None)
    monkeypatch.undo()
    monkeypatch.setattr(tiny_task.Linear, "initial", wide)
    with pytest.raises(SettingError, match=r"Linear is not that of the run: it has .* bytes"):
        melisma.resume(copy, cycles=3, say=lambda _: None)


INITIAL = tiny_task.Linear.initial


def wide(model: tiny_task.Linear) -> Any:
    return INITIAL(model) | {"more": np.zeros(3)}


BLOBS = tiny_task.blobs


def few_blobs() -> Any:
    (samples, labels), test = BLOBS()
    return (samples[:5], labels[:5]), test


def other_blobs() -> Any:
    rng = np.random.default_rng(4)
    samples, labels = rng.random((600, 4)).astype(np.float32), rng.integers(0, 2, 600)
    return (samples, labels), (samples[:100], labels[:100])


def test_a_folder_in_use_is_refused(copy: Path) -> None:
    journal = Journal.open(copy)
    with pytest.raises(SettingError, match="in use by another process"):
        melisma.resume(copy, cycles=3)
    journal.close()


def test_a_cancelled_run_goes_on(tmp_path: Path) -> None:
    folder, cancellation = tmp_path / "run", Cancellation()

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated):
            cancellation.request("interrupted")

    task = make_task(**TINY | {"cycles": 3})
    prepared = prepare(task, make_fleet(), folder=folder)
    report = training.run(prepared, watch=watch, cancellation=cancellation)
    assert report.outcome == "cancelled"
    assert melisma.resume(folder, say=lambda _: None).outcome == "finished"
    # The cycle that was cancelled counts.
    assert dispatched(folder) == [1, 2, 3]


def test_a_callback_sees_only_the_cycles_since_the_resumption(copy: Path) -> None:
    numbers: list[int] = []
    resuming.resume(
        copy, cycles=4, say=lambda _: None, on_cycle=lambda result: numbers.append(result.number)
    )
    assert numbers == [3, 4]


def test_a_run_whose_folder_is_deleted_keeps_its_model_and_trace(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated):
            shutil.rmtree(folder)

    with pytest.raises(DataError, match="was deleted while the run went on"):
        run_tiny(folder, watch)
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "trace.jsonl"]
    assert dispatched(folder) == [1, 2]


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melisma.live.orchestrator.full_disk.PAUSE_S", 0.001)
    attempts, notes = list[int](), list[str]()

    def write() -> str:
        attempts.append(1)
        if len(attempts) < 4:
            raise OSError(28, "no space left")
        return "written"

    assert wait_for_space(write, notes.append) == "written"
    assert len(attempts) == 4
    assert len(notes) == 1


def test_other_errors_of_the_disk_are_raised_at_once() -> None:
    def write() -> None:
        raise PermissionError(13, "denied")

    with pytest.raises(PermissionError):
        wait_for_space(write, print)


def test_an_update_that_rotted_on_disk_is_left_out(tmp_path: Path) -> None:
    """Two updates were acknowledged before the process was killed; one file has changed since."""
    store = make_store(tmp_path, {name: np.zeros_like(a) for name, a in GOOD_UPDATE.items()})
    begin_cycle(store, 1)
    for learner in (0, 1):
        store.accept((learner, 1, 1), store.spool((learner, 1, 1), GOOD_UPDATE))
    store.journal.flush()
    store.journal.journal.close()
    path = tmp_path / "updates" / "1-1-1.update"
    path.write_bytes(b"\x7f" * path.stat().st_size)
    (tmp_path / "updates" / "7-1-1.update").write_bytes(b"never acknowledged")
    notes: list[str] = []
    again = reopen(tmp_path, store.layout)
    again.on_note = notes.append
    guarded = close_cycle(again, aggregate_both())
    assert guarded.learners.tolist() == [1]
    assert np.isnan(guarded.scales).all()
    assert again.parameters["weight"].tolist() == GOOD_UPDATE["weight"].tolist()
    assert "damaged or missing" in notes[0]
    assert not list((tmp_path / "updates").iterdir())


def reopen(folder: Path, layout: Any) -> Any:
    from melisma.live.orchestrator.run_journal import RunJournal
    from melisma.live.orchestrator.run_store import RunStore
    from melisma.runs.recovery import RecoveredRun

    store = RunStore(RunJournal(Journal.open(folder)), layout, None)
    models = RecoveredRun().models
    for step in store.journal.journal.steps():
        models.apply(step)
    store.resume(models)
    return store


def aggregate_both() -> Any:
    return commands.Aggregate(
        reason="",
        cycle=1,
        learners=np.array([0, 1]),
        attempts=np.array([1, 1]),
        weights=np.ones(2),
        visits=np.ones(2, np.int64),
    )


@pytest.mark.parametrize(
    ("later", "expected_s"),
    [
        (ClockReading(1.0, 107.0, "boot"), 7.0),  # the clock was set back meanwhile
        (ClockReading(1e9, 107.0, "boot"), 7.0),  # or forward
        (ClockReading(5060.0, 3.0, "another"), 60.0),  # the machine was started again
        (ClockReading(4000.0, 3.0, "another"), 0.0),  # and its clock set back
    ],
)
def test_downtime_does_not_follow_a_clock_that_jumps(
    later: ClockReading, expected_s: float
) -> None:
    assert ClockReading(5000.0, 100.0, "boot").seconds_to(later) == expected_s


def test_the_clock_of_this_machine_does_not_go_back() -> None:
    first = ClockReading.now()
    assert 0 <= first.seconds_to(ClockReading.now()) < 60


def test_a_run_folder_is_free_when_its_process_is_gone(copy: Path) -> None:
    process = os.fork()
    if not process:
        Journal.open(copy)
        os._exit(0)
    os.waitpid(process, 0)
    Journal.open(copy).close()


def test_the_results_of_a_run_that_was_killed_at_its_very_end_are_saved(copy: Path) -> None:
    results = [copy / "trace.jsonl", copy / "picture.svg"]
    contents = [path.read_bytes() for path in results]
    for path in results:
        path.unlink()
    with pytest.raises(SettingError, match="ended after cycle 2: use --cycles"):
        resuming.resume(copy)
    assert [path.read_bytes() for path in results] == contents


def test_a_run_that_has_not_ended_takes_no_new_goal(copy: Path) -> None:
    """Its cycle would be lost: it is resumed first."""
    journal = Journal.open(copy)
    steps = list(journal.steps())
    setup = journal.get("setup")
    journal.close()
    folder = copy.with_name("cut")
    folder.mkdir()
    shortened = Journal.create(folder)
    shortened.put("setup", setup)
    shortened.write(*steps[: len(steps) // 2])
    shortened.close()
    with pytest.raises(SettingError, match="has not ended yet, it is in cycle"):
        prepare_resumption(folder, NewGoal(cycles=9))

"""The files of a run: late updates are averaged by cycle, and no update stays."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands
from melisma.fleet.server_settings import ServerSettings
from melisma.learning.own_aggregation import OwnAggregation
from melisma.learning.server.server_optimizer import ServerOptimizer
from melisma.learning.update_guard import UpdateGuard
from melisma.live.orchestrator import run_store
from melisma.live.orchestrator.run_store import RunStore
from tests.live.orchestrator.stored_run import begin_cycle, close, close_cycle, make_store, restore

ZEROS = {"weight": np.zeros(4)}


def update(value: float) -> dict[str, Any]:
    return {"weight": np.full(4, value)}


def aggregate(cycle: int, learners: list[int], late: list[tuple[int, int, float]]) -> Any:
    """Return the command; late updates have a learner, a cycle and a weight."""
    columns = [np.array(column) for column in zip(*late, strict=True)] or [np.empty(0)] * 3
    return commands.Aggregate(
        reason="",
        cycle=cycle,
        learners=np.array(learners, np.int64),
        attempts=np.ones(len(learners), np.int64),
        weights=np.ones(len(learners)),
        visits=np.ones(len(learners), np.int64),
        late=commands.LateUpdates(
            columns[0].astype(np.int64),
            columns[1].astype(np.int64),
            np.ones(len(late), np.int64),
            columns[2].astype(np.float64),
            np.ones(len(late), np.int64),
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """Return the store of a run without shards."""
    store = make_store(tmp_path, ZEROS)
    yield store
    store.close()


def accept(store: RunStore, learner: int, cycle: int, value: float) -> None:
    assignment = learner, cycle, 1
    store.accept(assignment, store.spool(assignment, update(value)))


def test_the_parameters_that_late_updates_began_with_are_read_once_per_cycle(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycle 1 goes from 0 to 2; three updates of it, to 4, 5 and 6, arrive in cycle 2."""
    begin_cycle(store, 1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    accept(store, 0, 2, 3.0)
    for learner, value in ((1, 4.0), (2, 5.0), (3, 6.0)):
        accept(store, learner, 1, value)
    read: list[Path] = []
    load = store._files._load

    def record_load(path: Path, checksum: int) -> Any:
        read.append(path)
        return load(path, checksum)

    monkeypatch.setattr(store._files, "_load", record_load)
    close_cycle(store, aggregate(2, [0], [(1, 1, 0.5), (2, 1, 0.5), (3, 1, 0.5)]))
    assert [path.name for path in read] == ["model-0.safetensors"]
    expected = (3.0 + 0.5 * (4.0 + 5.0 + 6.0) + 3 * 0.5 * 2.0) / 2.5
    assert store.parameters["weight"] == pytest.approx([expected] * 4)


def test_updates_that_do_not_count_are_deleted_with_the_next_average(store: RunStore) -> None:
    """A late update of weight 0 is not part of the average."""
    begin_cycle(store, 1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    accept(store, 1, 1, 4.0)
    accept(store, 0, 2, 3.0)
    close_cycle(store, aggregate(2, [0], []))
    assert store.parameters["weight"].tolist() == [3.0] * 4
    assert not list((store.folder / "updates").rglob("*.update"))
    assert not len(store._updates)


def guarded_store(folder: Path, rule: str = "clip") -> RunStore:
    """Return a store whose parameters are four ones, in the first cycle."""
    ones = update(1.0)
    store = make_store(folder, ones, guard=UpdateGuard(rule))
    begin_cycle(store, 1)
    return store


@pytest.mark.parametrize("rule", ["clip", "drop"])
def test_one_huge_update_does_not_change_the_model(tmp_path: Path, rule: str) -> None:
    store = guarded_store(tmp_path, rule)
    for learner, value in enumerate((2.0, 2.0, 1e30)):
        accept(store, learner, 1, value)
    command = aggregate(1, [0, 1, 2], [])
    guarded = close_cycle(store, command)
    assert store.parameters["weight"].tolist() == [2.0] * 4
    assert guarded.learners.tolist() == [2]
    assert guarded.scales.tolist() == [0.0]
    assert not list((store.folder / "updates").rglob("*.update"))
    store.close()


def test_the_change_of_a_large_update_is_scaled_down_to_the_limit(tmp_path: Path) -> None:
    """Five updates change each number by 1, the sixth by 10: it counts as a change by 4."""
    store = guarded_store(tmp_path)
    for learner, value in enumerate((2.0, 2.0, 2.0, 2.0, 2.0, 11.0)):
        accept(store, learner, 1, value)
    guarded = close_cycle(store, aggregate(1, [0, 1, 2, 3, 4, 5], []))
    assert store.parameters["weight"] == pytest.approx([1.0 + (5 * 1 + 4) / 6] * 4)
    assert guarded.scales.tolist() == [0.4]


def test_a_late_update_is_guarded_by_its_change_since_it_began(tmp_path: Path) -> None:
    """Cycle 1 goes from 1 to 2; in cycle 2 four updates change it by 1, and a late one by 10."""
    store = guarded_store(tmp_path)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    for learner in range(4):
        accept(store, learner, 2, 3.0)
    accept(store, 4, 1, 11.0)
    command = aggregate(2, [0, 1, 2, 3], [(4, 1, 1.0)])
    guarded = close_cycle(store, command)
    assert store.parameters["weight"] == pytest.approx([2.0 + (4 * 1 + 4) / 5] * 4)
    assert guarded.learners.tolist() == [4]
    assert guarded.cycles.tolist() == [1]


def test_if_all_updates_are_left_out_the_model_stays(tmp_path: Path) -> None:
    store = guarded_store(tmp_path)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    accept(store, 0, 2, 1e30)
    close_cycle(store, aggregate(2, [0], []))
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_the_model_before_an_average_is_restored_and_served(tmp_path: Path) -> None:
    store = guarded_store(tmp_path, "off")
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    accept(store, 0, 2, 1e30)
    close_cycle(store, aggregate(2, [0], []))
    restore(store, 2)
    served = store.path(store.model_name)
    assert served is not None
    assert store.model is not None
    for arrays in (store.parameters, load_file(served), load_file(store.model)):
        assert arrays["weight"].tolist() == [2.0] * 4
    restore(store, 2)
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_without_a_good_model_there_is_no_model_file(tmp_path: Path) -> None:
    store = guarded_store(tmp_path, "off")
    accept(store, 0, 1, 1e30)
    close_cycle(store, aggregate(1, [0], []))
    restore(store, 1)
    assert store.model is None
    assert store.parameters["weight"].tolist() == [1.0] * 4


def test_without_a_guard_no_distance_is_computed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.guard.rule == "off"
    for name in ("distance", "norm_of"):
        monkeypatch.delattr(run_store, name)
    begin_cycle(store, 1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_a_rejected_model_takes_the_state_of_the_server_optimiser_with_it(tmp_path: Path) -> None:
    """Momentum 0.5: a change of 1 is followed by a step of 1.5 if the change was 1 again."""
    settings = ServerSettings(name="momentum", momentum=0.5)
    server = ServerOptimizer(settings, ["weight"])
    store = make_store(tmp_path, ZEROS, server=server)
    for cycle, value in ((1, 1.0), (2, 1e9), (3, 2.0)):
        begin_cycle(store, cycle)
        accept(store, 0, cycle, value)
        close_cycle(store, aggregate(cycle, [0], []))
        if cycle == 2:
            restore(store, cycle)
            assert store.parameters["weight"].tolist() == [1.0] * 4
    assert store.parameters["weight"].tolist() == [2.5] * 4
    store.close()


def weighted(updates: Any, weights: Any) -> Any:
    return {name: np.average(rows, axis=0, weights=weights) for name, rows in updates.items()}


def test_late_and_normalised_updates_come_to_an_own_aggregation_as_they_count(
    tmp_path: Path,
) -> None:
    """The weighted mean as a function gives the same model as the mean that is built in."""
    results = []
    for name, aggregation in (("a", None), ("b", OwnAggregation("m:weighted", weighted))):
        folder = tmp_path / name
        store = make_store(folder, ZEROS, aggregation=aggregation)
        begin_cycle(store, 1)
        accept(store, 0, 1, 2.0)
        close_cycle(store, aggregate(1, [0], []))
        begin_cycle(store, 2)
        accept(store, 0, 2, 3.0)
        accept(store, 1, 1, 5.0)
        command = aggregate(2, [0], [(1, 1, 0.5)])
        late = msgspec.structs.replace(command.late, steps=np.array([10]))
        close_cycle(store, msgspec.structs.replace(command, steps=np.array([4]), late=late))
        results.append(store.parameters["weight"])
        store.close()
    mean_steps = (4 * 1.0 + 10 * 0.5) / 1.5
    expected = 2.0 + mean_steps * (1.0 * (1.0 / 4) + 0.5 * (5.0 / 10)) / 1.5
    np.testing.assert_allclose(results[0], expected)
    np.testing.assert_allclose(results[1], expected)


@pytest.mark.parametrize("is_damaged_before", [True, False])
def test_late_updates_that_began_with_damaged_parameters_are_left_out(
    tmp_path: Path, is_damaged_before: bool
) -> None:
    notes: list[str] = []
    store = make_store(tmp_path, ZEROS, guard=UpdateGuard("clip"), on_note=notes.append)
    begin_cycle(store, 1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    begin_cycle(store, 2)
    for damages, number in ((is_damaged_before, 2), (not is_damaged_before, 1)):
        if damages:
            path = tmp_path / "parameters" / "model-0.safetensors"
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        # The learner is not to blame: its update is acknowledged.
        accept(store, *((0, 2, 3.0) if number == 1 else (1, 1, 5.0)))
    guarded = close_cycle(store, aggregate(2, [0], [(1, 1, 0.5)]))
    assert guarded.learners.tolist() == [1]
    assert np.isnan(guarded.scales).all()
    assert store.parameters["weight"].tolist() == [3.0] * 4
    assert "updates of cycle 1 are left out" in notes[0]
    assert "model-0.safetensors is damaged" in notes[0]
    store.close()


async def test_a_clean_up_that_waits_for_the_disk_keeps_the_versions_since_then(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = asyncio.Event()
    monkeypatch.setattr(store.journal, "sync", on_disk.wait)
    closings = []
    for cycle in (1, 2):
        begin_cycle(store, cycle)
        accept(store, 0, cycle, float(cycle))
        closings.append(asyncio.create_task(close(store, aggregate(cycle, [0], []))))
        await asyncio.sleep(0)
    on_disk.set()
    for closing in closings:
        await closing
        path = store.path(store.model_name)
        assert path is not None
        np.testing.assert_array_equal(load_file(path)["weight"], np.full(4, 2.0))

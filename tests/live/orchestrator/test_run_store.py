"""The files of a run: late updates are averaged by cycle, and no update stays."""

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
from melisma.learning.parameters import Layout
from melisma.learning.server.server_optimizer import ServerOptimizer
from melisma.learning.update_guard import UpdateGuard
from melisma.live.orchestrator import run_store
from melisma.live.orchestrator.run_store import RunStore

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
    store = RunStore(tmp_path, Layout.from_arrays(ZEROS), None)
    store.save_initial(ZEROS)
    yield store
    store.close()


def close_cycle(store: RunStore, command: Any) -> None:
    store.aggregate(command.cycle, store.take_accepted(command))


def accept(store: RunStore, learner: int, cycle: int, value: float) -> None:
    assignment = learner, cycle, 1
    store.accept(assignment, store.spool(assignment, update(value)))


def test_the_parameters_that_late_updates_began_with_are_read_once_per_cycle(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycle 1 goes from 0 to 2; three updates of it, to 4, 5 and 6, arrive in cycle 2."""
    store.begin_cycle(1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    store.begin_cycle(2)
    accept(store, 0, 2, 3.0)
    for learner, value in ((1, 4.0), (2, 5.0), (3, 6.0)):
        accept(store, learner, 1, value)
    read: list[Path] = []

    def record(path: Path) -> Any:
        read.append(path)
        return load_file(path)

    monkeypatch.setattr(run_store, "load_file", record)
    close_cycle(store, aggregate(2, [0], [(1, 1, 0.5), (2, 1, 0.5), (3, 1, 0.5)]))
    assert [path.name for path in read] == ["model-0.safetensors"]
    expected = (3.0 + 0.5 * (4.0 + 5.0 + 6.0) + 3 * 0.5 * 2.0) / 2.5
    assert store.parameters["weight"] == pytest.approx([expected] * 4)


def test_updates_that_do_not_count_are_deleted_with_the_next_average(store: RunStore) -> None:
    """A late update of weight 0 is not part of the average."""
    store.begin_cycle(1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    store.begin_cycle(2)
    accept(store, 1, 1, 4.0)
    accept(store, 0, 2, 3.0)
    close_cycle(store, aggregate(2, [0], []))
    assert store.parameters["weight"].tolist() == [3.0] * 4
    assert not list((store.folder / "updates").rglob("*.update"))
    assert not store._accepted


def guarded_store(folder: Path, rule: str = "clip") -> RunStore:
    """Return a store whose parameters are four ones, in the first cycle."""
    ones = update(1.0)
    store = RunStore(folder, Layout.from_arrays(ones), None, UpdateGuard(rule))
    store.save_initial(ones)
    store.begin_cycle(1)
    return store


@pytest.mark.parametrize("rule", ["clip", "drop"])
def test_one_huge_update_does_not_change_the_model(tmp_path: Path, rule: str) -> None:
    store = guarded_store(tmp_path, rule)
    for learner, value in enumerate((2.0, 2.0, 1e30)):
        accept(store, learner, 1, value)
    command = aggregate(1, [0, 1, 2], [])
    guarded = store.aggregate(1, store.take_accepted(command))
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
    guarded = store.aggregate(1, store.take_accepted(aggregate(1, [0, 1, 2, 3, 4, 5], [])))
    assert store.parameters["weight"] == pytest.approx([1.0 + (5 * 1 + 4) / 6] * 4)
    assert guarded.scales.tolist() == [0.4]


def test_a_late_update_is_guarded_by_its_change_since_it_began(tmp_path: Path) -> None:
    """Cycle 1 goes from 1 to 2; in cycle 2 four updates change it by 1, and a late one by 10."""
    store = guarded_store(tmp_path)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    store.begin_cycle(2)
    for learner in range(4):
        accept(store, learner, 2, 3.0)
    accept(store, 4, 1, 11.0)
    command = aggregate(2, [0, 1, 2, 3], [(4, 1, 1.0)])
    guarded = store.aggregate(2, store.take_accepted(command))
    assert store.parameters["weight"] == pytest.approx([2.0 + (4 * 1 + 4) / 5] * 4)
    assert guarded.learners.tolist() == [4]
    assert guarded.cycles.tolist() == [1]


def test_if_all_updates_are_left_out_the_model_stays(tmp_path: Path) -> None:
    store = guarded_store(tmp_path)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    store.begin_cycle(2)
    accept(store, 0, 2, 1e30)
    close_cycle(store, aggregate(2, [0], []))
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_the_model_before_an_average_is_restored_and_served(tmp_path: Path) -> None:
    store = guarded_store(tmp_path, "off")
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    store.begin_cycle(2)
    accept(store, 0, 2, 1e30)
    close_cycle(store, aggregate(2, [0], []))
    store.restore()
    served = store.path(store.model_name)
    assert served is not None
    assert store.model is not None
    for arrays in (store.parameters, load_file(served), load_file(store.model)):
        assert arrays["weight"].tolist() == [2.0] * 4
    store.restore()
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_without_a_good_model_there_is_no_model_file(tmp_path: Path) -> None:
    store = guarded_store(tmp_path, "off")
    accept(store, 0, 1, 1e30)
    close_cycle(store, aggregate(1, [0], []))
    store.restore()
    assert store.model is None
    assert store.parameters["weight"].tolist() == [1.0] * 4


def test_without_a_guard_no_distance_is_computed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.guard.rule == "off"
    for name in ("distance", "norm_of"):
        monkeypatch.delattr(run_store, name)
    store.begin_cycle(1)
    accept(store, 0, 1, 2.0)
    close_cycle(store, aggregate(1, [0], []))
    assert store.parameters["weight"].tolist() == [2.0] * 4


def test_a_rejected_model_takes_the_state_of_the_server_optimiser_with_it(tmp_path: Path) -> None:
    """Momentum 0.5: a change of 1 is followed by a step of 1.5 if the change was 1 again."""
    settings = ServerSettings(name="momentum", momentum=0.5)
    server = ServerOptimizer(settings, ["weight"])
    store = RunStore(tmp_path, Layout.from_arrays(ZEROS), None, server=server)
    store.save_initial(ZEROS)
    for cycle, value in ((1, 1.0), (2, 1e9), (3, 2.0)):
        store.begin_cycle(cycle)
        accept(store, 0, cycle, value)
        close_cycle(store, aggregate(cycle, [0], []))
        if cycle == 2:
            store.restore()
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
        store = RunStore(folder, Layout.from_arrays(ZEROS), None, aggregation=aggregation)
        store.save_initial(ZEROS)
        store.begin_cycle(1)
        accept(store, 0, 1, 2.0)
        close_cycle(store, aggregate(1, [0], []))
        store.begin_cycle(2)
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

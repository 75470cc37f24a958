"""The files of a run: late updates are averaged by cycle, and no update stays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands
from melisma.learning.parameters import Layout
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
        late=commands.LateUpdates(
            columns[0].astype(np.int64),
            columns[1].astype(np.int64),
            np.ones(len(late), np.int64),
            columns[2].astype(np.float64),
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

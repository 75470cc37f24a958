"""Memory of an orchestrator while many learners upload at once, and while many are idle."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.live.attacks.attacked_fleet import HostileLearner, attacked_fleet

MAX_GROWTH_MODELS = 10
"""The model, its mean, and one copy for each thread that writes an update."""
PATIENT = "from melisma.cycle import learner; learner.MIN_SILENCE_S = learner.MAX_SILENCE_S = 300.0"
"""Run by the orchestrator: the callers of this test do not poll while they upload."""


@pytest.mark.parametrize(
    ("count", "numbers"), [(16, 1_000_000), pytest.param(100, 10_000_000, marks=pytest.mark.slow)]
)
def test_memory_is_bounded_while_learners_upload_a_large_model(
    tmp_path: Path, count: int, numbers: int
) -> None:
    task: dict[str, Any] = {"cycles": 1, "deadline_s": 300.0}
    task |= {"model_args": {"numbers": numbers}, "data_args": {"samples": 50 * count}}
    with attacked_fleet(tmp_path, learners=count, code=PATIENT, **task) as fleet:
        learners = [fleet.hostile(f"learner-{number}") for number in range(count)]
        for learner in learners:
            learner.join()
        update = {"weight": np.zeros(numbers, np.float32), "bias": np.zeros(1, np.float32)}
        with ThreadPoolExecutor(count) as pool, fleet.watching_memory() as memory:
            before_bytes = memory.anonymous_bytes
            answers = list(pool.map(lambda learner: upload(learner, update), learners))
        report = fleet.finish(300.0)
    assert answers == [""] * count
    assert report.outcome == "finished", report.reason
    assert report.ended_cycles[0].counts == {"counted": count}
    assert memory.peak_bytes - before_bytes < MAX_GROWTH_MODELS * 4 * numbers


def upload(learner: HostileLearner, update: "dict[str, np.ndarray]") -> str:
    return learner.upload(learner.await_work(), update, deadline_s=300.0)

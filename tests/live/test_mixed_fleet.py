"""A run of a learner whose compute device queues work, as a GPU does, beside CPU learners."""

import re
import shutil
from pathlib import Path

from melisma.cycle.events import PHASES, CostsReported
from melisma.learning.pytorch.compute_device import MAX_QUEUED_S
from tests.live import queueing_task
from tests.live.attacks.attacked_fleet import attacked_fleet, total

BATCH_S, BATCHES_PER_SHARD, DEADLINE_S, CYCLES = 0.008, 2, 4.0, 2


def test_a_learner_that_queues_work_is_measured_halts_and_counts_as_cpu_learners_do(
    tmp_path: Path,
) -> None:
    """Without waiting for its device, it would seem faster than any other, and train for hours."""
    shutil.copy(queueing_task.__file__, tmp_path)
    task = {"model": "queueing_task:Queueing", "scheme": "proportional", "extension": True}
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"from queueing_task import use_queueing_device; use_queueing_device({BATCH_S})"
    )
    with attacked_fleet(
        tmp_path, learners=3, cycles=CYCLES, deadline_s=DEADLINE_S, **task
    ) as fleet:
        gpu = fleet.start_learner("gpu", code)
        fleet.start_learner("a")
        fleet.start_learner("b")
        report = fleet.finish(120.0)
        log = gpu.log
    totals = {name: total(report, name) for name in ("gpu", "a", "b")}
    assert report.outcome == "finished"
    assert report.accuracy > 0.9
    for item in totals.values():
        assert item.counted_visits > 0
        assert item.refused == 0
    # The benchmark and the training contain the time of the queued work.
    number = report.names.index("gpu")
    measured = [
        step.event.costs[0, 0, step.event.learners.tolist().index(number)]
        for step in report.trace
        if isinstance(step.event, CostsReported) and number in step.event.learners
    ]
    assert measured
    assert min(measured) >= 0.99 * BATCHES_PER_SHARD * BATCH_S
    gpu_total, train_s = totals["gpu"], totals["gpu"].phases[PHASES.index("train")]
    assert train_s >= 0.99 * gpu_total.counted_visits / 32 * BATCH_S
    # It trains until the deadline and stops: thousands of batches would be queued otherwise.
    assert train_s > 0.2 * CYCLES * DEADLINE_S
    assert train_s < 2 * CYCLES * DEADLINE_S
    longest_s = max(map(float, re.findall(r"queued ([\d.]+) s", log)))
    assert BATCH_S <= longest_s + 1e-6 <= max(MAX_QUEUED_S, BATCH_S) + 2e-6

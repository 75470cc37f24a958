"""The time of all learners while tasks wait."""

import pytest

from benchmarks.service.waiting_tasks import (
    LOSSES,
    TRAINING,
    Setting,
    queue_fleet,
    queue_tasks,
    time_of_learners,
)
from melisma.runs.service_report import ServiceReport
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import SimulationOptions


def run(setting: Setting) -> ServiceReport:
    options = SimulationOptions(work="timing", scheme=setting.scheme, seed=6)
    return run_tasks(prepare_tasks(queue_tasks(setting), queue_fleet(setting, 6), options))


def waiting_s(report: ServiceReport) -> float:
    """Return the seconds of the rounds that held a task, each until the next one."""
    begins = [each.began_s for each in report.rounds]
    return sum(
        end - each.began_s
        for each, end in zip(report.rounds, [*begins[1:], report.ended_s], strict=True)
        if each.held
    )


@pytest.mark.parametrize("extension", [True, False])
def test_each_second_of_each_learner_counts_once(extension: bool) -> None:
    report = run(Setting("fifo", extension=extension))
    seconds = time_of_learners(report, 10)
    assert waiting_s(report) > 0
    assert sum(seconds.values()) == pytest.approx(10 * waiting_s(report))
    assert min(seconds.values()) >= -1e-6


def test_learners_wait_for_other_cycles_only_with_unequal_deadlines() -> None:
    shares = []
    for equal in (False, True):
        seconds = time_of_learners(run(Setting("fifo", equal_deadlines=equal)), 10)
        shares.append(seconds[LOSSES[2]] / sum(seconds.values()))
        assert seconds[TRAINING] > 0.5 * sum(seconds.values())
    assert shares[0] > 0.1
    assert shares[1] < 0.02

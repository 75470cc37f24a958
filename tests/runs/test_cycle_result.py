"""A callback receives the result of each cycle; an error in it ends the run and is raised."""

from pathlib import Path

import pytest

from melisma.runs.cycle_result import CycleResult
from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from melisma.simulation import SimulationOptions, simulate
from tests.simulation.scenarios import make_fleet, make_task

TIMING = SimulationOptions(work="timing")


def test_a_callback_receives_the_figures_of_each_cycle() -> None:
    results: list[CycleResult] = []
    report = simulate(make_task(), make_fleet(), TIMING, on_cycle=results.append)
    assert [each.number for each in results] == [cycle.number for cycle in report.cycles]
    for result, cycle in zip(results, report.cycles, strict=True):
        assert (result.seconds, result.deadline_s) == (cycle.cycle_s, cycle.deadline_s)
        assert (result.met_deadline, result.learners) == (cycle.met_deadline, 3)
        assert result.updates == cycle.counts["counted"]
        assert result.capacity_used == cycle.capacity_used
        assert result.elapsed_s >= result.seconds


def test_an_error_in_a_callback_cancels_the_run_and_keeps_its_results(tmp_path: Path) -> None:
    def fail(cycle: CycleResult) -> None:
        if cycle.number == 2:
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        simulate(make_task(), make_fleet(), TIMING, folder=tmp_path / "run", on_cycle=fail)
    report = Report.from_trace(read_trace(tmp_path / "run" / "trace.jsonl"))
    assert report.outcome == "cancelled"
    assert report.reason == "on_cycle raised LookupError: no such thing"
    assert len(report.ended_cycles) == 2

"""The figures of a run are those of its report."""

from melisma.simulation.comparison.compared_run import FIGURES, ComparedRun
from melisma.simulation.comparison.figures import (
    TIME_FIGURES,
    WORK_FIGURES,
)
from tests.runs.test_report import report_of


def test_capacity_used_and_time_outside_cycles_are_compared() -> None:
    report = report_of("equal")
    run = ComparedRun.from_report(report)
    assert (run.capacity_used, run.outside_share) == (report.capacity_used, report.outside_share)
    assert {"capacity_used", "outside_share"} <= set(FIGURES)
    assert TIME_FIGURES["outside_share"] == ("outside", "%")
    assert WORK_FIGURES["capacity_used"] == ("capacity", "%")

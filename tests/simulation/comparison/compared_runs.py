"""Runs of schemes on seeds, made up for tests."""

from math import isnan

from melisma.simulation.comparison.compared_run import ComparedRun
from melisma.simulation.comparison.comparison import Comparison, Target, summarize_runs
from melisma.simulation.simulation import SimulationOptions
from tests.simulation import scenarios

NO_TARGET = Target()
TIMING = SimulationOptions(work="timing")


def runs_of(scheme: str, *seconds: float, accuracy: float = 0.9) -> tuple[ComparedRun, ...]:
    """Return runs that reach an accuracy after these seconds, or fail where they are NaN."""
    return tuple(
        ComparedRun(scheme, seed, "failed", "no learner answered")
        if isnan(each)
        else ComparedRun(
            *(scheme, seed, "finished"),
            curve=((each, accuracy),),
            training_s=each,
            run_s=each,
            accuracy=accuracy,
        )
        for seed, each in enumerate(seconds)
    )


def summarize(*runs: tuple[ComparedRun, ...], target: Target = NO_TARGET) -> Comparison:
    schemes = tuple(scheme_runs[0].scheme for scheme_runs in runs)
    return summarize_runs(scenarios.make_task(), "train", schemes, sum(runs, ()), target)

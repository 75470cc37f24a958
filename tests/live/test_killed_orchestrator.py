"""An orchestrator that is killed, or whose machine loses power, and the run that goes on.

Runs that end have the parameters of a run that was left alone, and keep the invariants.
"""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.live.power_cuts import crash_states
from benchmarks.live.power_cuts.cut_run import CutRun
from benchmarks.live.power_cuts.recorder import Recorder, find_compiler
from benchmarks.live.soak import CUT, KILLED, soak

pytestmark = pytest.mark.timeout(1200)


def test_a_killed_run_ends_as_if_it_had_been_left_alone(tmp_path: Path) -> None:
    tally = soak(tmp_path, kills=2, cuts=0)[KILLED]
    assert (tally.kills, tally.broken) == (2, [])


needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler for the recorder of changes"
)


@needs_compiler
def test_a_run_can_be_resumed_after_a_power_cut_at_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_states, "KEPT_SHARES", (0.0,))
    recorder = Recorder(tmp_path / "recorder")
    recorder.compile()
    run = CutRun(tmp_path / "cut", np.random.default_rng(0), recorder=recorder, cycles=1)
    run.write_files()
    assert run.stop(run.start())
    process = run.resume()
    assert process is not None
    assert process.end() == 0, process.output
    run.check()


@needs_compiler
def test_a_run_whose_machine_loses_power_ends_as_if_left_alone(tmp_path: Path) -> None:
    tally = soak(tmp_path, kills=0, cuts=2)[CUT]
    assert (tally.kills, tally.broken) == (2, [])

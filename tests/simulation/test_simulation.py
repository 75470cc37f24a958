"""`simulate`: options, interruption and invalid settings."""

import errno
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle import events
from melisma.errors import DataError, MelismaWarning, RunFailedError, SettingError
from melisma.runs import trace
from melisma.runs.report import Report
from melisma.runs.trace import Step, encode_step, read_trace
from melisma.simulation import SimulationOptions, simulate
from melisma.simulation.simulation import prepare, run
from tests.lanes import cases
from tests.simulation.scenarios import LEARNERS, make_fleet, make_task

TINY = {"model": "tests.live.tiny_task:Linear", "data": "tests.live.tiny_task:blobs", "sizes": {}}
TIMING = SimulationOptions(work="timing")


def test_ctrl_c_cancels_a_run_and_saves_partial_results(tmp_path: Path) -> None:
    pressed: list[Step] = []

    def press(step: Step) -> None:
        if isinstance(step.event, events.Evaluated) and not pressed:
            pressed.append(step)
            raise KeyboardInterrupt

    report = run(prepare(make_task(), make_fleet(), TIMING), tmp_path / "kept", press)
    assert (report.outcome, report.reason) == ("cancelled", "interrupted")
    assert report.picture_path is not None
    assert report.picture_path.is_file()
    assert report.trace_path is not None
    kept = Report.from_trace(read_trace(report.trace_path))
    assert (kept.outcome, len(kept.ended_cycles)) == ("cancelled", 1)


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_model_that_cannot_be_written_leaves_no_part_of_itself(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(DataError, match=r"no space is left .*; kept in .*: trace.jsonl;"):
        simulate(
            make_task(**TINY, cycles=1, batch=10),
            make_fleet(),
            SimulationOptions(work="train"),
            folder=tmp_path,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_a_full_disk_ends_the_run_and_the_model_so_far_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[Step] = []

    def fill(step: Step) -> bytes:
        evaluated.extend([step] * isinstance(step.event, events.Evaluated))
        if len(evaluated) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return encode_step(step)

    monkeypatch.setattr(trace, "encode_step", fill)
    with pytest.raises(
        DataError, match=r"no space is left on .*; kept in .*: model.safetensors, trace.jsonl"
    ):
        simulate(
            make_task(**TINY, cycles=5, batch=10),
            make_fleet(),
            SimulationOptions(work="train"),
            folder=tmp_path,
        )
    kept = Report.from_trace(read_trace(tmp_path / "trace.jsonl"))
    assert len(kept.ended_cycles) == 2
    assert len(evaluated) == 2
    assert (tmp_path / "model.safetensors").stat().st_size > 0


def no_picture(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_model_nor_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "plot", no_picture)
    with pytest.warns(MelismaWarning, match=r"cannot draw .*picture\.svg: ZeroDivisionError"):
        report = simulate(
            make_task(**TINY, cycles=1, batch=10),
            make_fleet(),
            SimulationOptions(work="train"),
            folder=tmp_path,
        )
    assert report.outcome == "finished"
    assert report.picture_path is None
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model.safetensors", "trace.jsonl"}


def test_options_override_the_task() -> None:
    options = SimulationOptions(scheme="equal", seed=9, work="timing", deadline_s=33.0)
    task = simulate(make_task(), make_fleet(), options).task
    assert (task.scheme, task.seed, task.deadline_s) == ("equal", 9, 33.0)


@pytest.mark.parametrize("scheme", ["equal", "proportional", "dab", "synchronous", "staleness"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_federated_run_whose_data_has_left_ends_with_that_reason(
    scheme: str, shards: int
) -> None:
    passes = None if scheme in ("synchronous", "staleness") else 1
    federated = make_task(
        mode="federated",
        scheme=scheme,
        passes=passes,
        min_shards=0,
        sizes={"samples": 100 * shards},
        cycles=1000,
    )
    owners = np.flatnonzero(make_fleet().local_shards(federated)).tolist()
    assert len(owners) == shards < len(LEARNERS)
    faults = "; ".join(f"crash {owner} at {12 + owner}" for owner in owners)
    with pytest.raises(RunFailedError) as failed:
        simulate(federated, make_fleet(), SimulationOptions(work="timing", faults=faults))
    report = failed.value.report
    assert report.outcome == "failed"
    assert "has any data" in report.reason or "no learner" in report.reason
    assert str(failed.value) == f"the run of task {report.task.name} failed: {report.reason}"


@given(st.data())
@settings(max_examples=cases(30))
def test_a_federated_run_survives_any_learners_leaving(data: st.DataObject) -> None:
    devices = data.draw(st.integers(2, 6))
    scheme = data.draw(st.sampled_from(["equal", "proportional", "dab", "synchronous"]))
    federated = make_task(
        mode="federated",
        scheme=scheme,
        passes=None if scheme == "synchronous" else 1,
        min_shards=0,
        sizes={"samples": 100 * data.draw(st.integers(1, devices))},
    )
    crashes = data.draw(st.dictionaries(st.integers(0, devices - 1), st.integers(0, 20)))
    faults = "; ".join(f"crash {learner} at {at_s}" for learner, at_s in crashes.items())
    learners = [{**LEARNERS[k % 3], "name": f"device-{k}"} for k in range(devices)]
    options = SimulationOptions(work="timing", faults=faults)
    report = run(prepare(federated, make_fleet(learners), options))
    assert report.outcome in ("finished", "failed")
    assert report.reason


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_without_passes_each_learner_makes_those_that_fit(scheme: str, mode: str) -> None:
    task = make_task(scheme=scheme, passes=None, mode=mode, cycles=2)
    report = simulate(task, make_fleet(), TIMING)
    assert report.outcome == "finished", report.reason
    for cycle in report.cycles:
        assert cycle.met_deadline
        assert len(cycle.assignments) == len(LEARNERS)
        assert cycle.assignments.passes.min() >= 1
    if scheme == "equal":
        assert len(set(report.cycles[0].assignments.passes.tolist())) > 1


def test_a_seed_for_faults_may_be_a_number_or_text() -> None:
    one, other = (
        simulate(make_task(), make_fleet(), SimulationOptions(work="timing", faults=said))
        for said in (7, "7")
    )
    assert one.as_dict() == other.as_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"work": "play"}, "work is 'play'; expected one of timing, train, batched"),
        ({"seed": -1}, "seed is -1"),
        ({"deadline_s": 0.0}, "deadline_s is 0"),
        ({"learners": 7}, "learners = 7, but this fleet has 3 learners"),
    ],
)
def test_invalid_options_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        simulate(make_task(), make_fleet(), SimulationOptions(**({"work": "timing"} | settings)))


def test_a_fleet_without_learners_at_the_start_is_refused() -> None:
    late = [learner | {"availability": {"joins_s": 5.0}} for learner in LEARNERS]
    with pytest.raises(
        SettingError, match=r"^no learner is present at the start; give at least one"
    ):
        simulate(make_task(), make_fleet(late), TIMING)


def test_the_file_of_a_fleet_without_learners_at_the_start_is_named(tmp_path: Path) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(
        '[[fleet.group]]\ncount = 2\nprofile = "phone"\navailability = { joins_s = 5.0 }\n'
    )
    message = rf"^{re.escape(str(path))}: fleet: no learner is present at the start"
    with pytest.raises(SettingError, match=message):
        simulate(make_task(), path, TIMING)


def test_a_shard_that_is_larger_than_the_data_is_refused() -> None:
    task = make_task()
    large = msgspec.structs.replace(task, shard_samples=task.samples + 1)
    message = rf"shard_samples = {task.samples + 1} is more than the {task.samples} samples"
    with pytest.raises(SettingError, match=message):
        simulate(large, make_fleet(), TIMING)


def test_faults_are_checked_before_data_is_loaded() -> None:
    unreadable = make_task(model="nowhere:Net", data="nowhere:load")
    with pytest.raises(SettingError, match="invalid fault 'crush 1 at 2'"):
        simulate(unreadable, make_fleet(), SimulationOptions(faults="crush 1 at 2"))


@pytest.mark.parametrize("scheme", ["med", "mmtt", "feel", "random"])
def test_a_scheme_that_plans_no_cycle_is_refused_before_data_is_loaded(scheme: str) -> None:
    unreadable = make_task(model="nowhere:Net", data="nowhere:load", scheme=scheme)
    message = f"scheme {scheme} cannot run a cycle of one task; use equal, "
    with pytest.raises(SettingError, match=message):
        simulate(unreadable, make_fleet())


def test_the_example_of_twenty_nodes_is_simulated_with_the_sizes_of_its_paper() -> None:
    example = Path(__file__).parents[2] / "examples" / "twenty-nodes"
    assert simulate(example / "TASK.toml", example / "FLEET.toml").outcome == "finished"


def test_a_run_without_a_plan_names_the_learners_that_are_too_slow() -> None:
    slow = LEARNERS[0] | {"samples_per_s": 0.5}
    fleet = make_fleet([slow, slow | {"name": "snail"}])
    report = run(prepare(make_task(scheme="staleness", passes=None), fleet, TIMING))
    assert report.outcome == "failed"
    assert "2 of 2 learners (tortoise, snail) cannot train one shard once by 10 s" in report.reason


def test_a_learner_that_sleeps_at_the_start_joins_when_it_wakes(tmp_path: Path) -> None:
    task, fleet, trace = (tmp_path / name for name in ("task.toml", "fleet.toml", "trace.csv"))
    task.write_text(
        '[task]\nname = "t"\nmodel = "twonn"\ndata = "mnist"\npasses = 1\ndeadline_s = 10.0\n'
        'cycles = 4\nsimulation = { work = "timing" }\n'
    )
    fleet.write_text(
        '[fleet]\ntrace = "trace.csv"\n[[fleet.group]]\ncount = 3\nprofile = "phone"\n'
    )
    trace.write_text("learner,at_s,event\nphone-1,0,sleep\nphone-1,15,wake\nphone-2,25,sleep\n")
    report = simulate(task, fleet)
    counted = [
        {row.name for row in cycle.assignments if row.status == "counted"}
        for cycle in report.cycles
    ]
    assert counted == [
        {"phone-2", "phone-3"},
        {"phone-1", "phone-2", "phone-3"},
        {"phone-1", "phone-3"},
        {"phone-1", "phone-3"},
    ]


def test_devices_train_on_their_own_samples_simulated_with_and_without_training() -> None:
    sizes = (40, 130, 300)
    learners = [each | {"own_samples": own} for each, own in zip(LEARNERS, sizes, strict=True)]
    task = make_task(**TINY, mode="federated", cycles=1, batch=10, shard_samples=50, late="drop")
    for work in ("timing", "train"):
        report = simulate(task, make_fleet(learners), SimulationOptions(work=work))
        assert report.learners.shards.tolist() == [1, 3, 6]
        samples = [assignment.samples for assignment in report.cycles[0].assignments]
        assert samples == list(sizes)


@pytest.mark.parametrize(
    ("level", "cause"), [("timing", "trains no model"), ("batched", "use --out, or folder")]
)
def test_checkpoints_that_no_folder_keeps_are_noted(level: Any, cause: str) -> None:
    task = msgspec.structs.replace(make_task(), checkpoints="best")
    with pytest.warns(MelismaWarning, match=f'checkpoints = "best": ignored, as .*{cause}'):
        simulate(task, make_fleet(), SimulationOptions(work=level))


def test_checkpoints_that_a_folder_keeps_are_not_noted(tmp_path: Path) -> None:
    prepared = prepare(make_task(), make_fleet(), SimulationOptions(work="batched"))
    assert prepared.notes(None) == prepared.notes(tmp_path) == []
    task = msgspec.structs.replace(prepared.scenario.task, checkpoints="all")
    kept = replace(prepared, scenario=replace(prepared.scenario, task=task))
    assert kept.notes(tmp_path) == []
    assert len(kept.notes(None)) == 1

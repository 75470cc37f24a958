"""`melisma plan` agrees with `melisma simulate` of the same files about the deadline."""

import re
from pathlib import Path
from typing import Any

import pytest

from melisma.runs.report import Report
from melisma.simulation import SimulationOptions
from melisma.simulation.simulation import prepare, run
from tests.cli.command_line import Result, parse_json
from tests.cli.command_line import melisma as run_melisma

TASK = """
[task]
name = "phones"
model = "twonn"
data = "mnist"
mode = "federated"
scheme = "dab"
passes = 40
deadline_s = 20.0
cycles = 20
shard_samples = 50
simulation = { work = "timing" }
"""
WARNING = (
    "warning: about 12% of the cycles close by 20 s, because about 66% of the planned weight "
    "arrives by then and a cycle closes with 80%; expect the others to be up to 10 s late"
)
PARTIAL = (
    "about 98% of the learners finish their shards by 20 s; the others send what they have trained"
)
EXTENSION = (
    "with extension, learners go on until the deadline; seconds and staleness are those of the "
    "planned work"
)
PHONES = '[[fleet.group]]\ncount = {}\nprofile = "phone"\n'
FLEETS = {
    "sleepers": "availability = { awake_s = 200.0, asleep_s = 100.0 }",
    "dozers": "availability = { awake_s = 40.0, asleep_s = 40.0 }",
    "states": "states = { compute = [1.0, 0.2, 0.9], bandwidth = [1.0, 0.9, 0.05], heat = 0.4 }",
    "noisy": "noise = { compute = 0.3, bandwidth = 0.8, correlation_s = 1.0 }",
    "plain": "spread = { compute = 0.4, bandwidth_bps = 0.6 }",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    write_fleets(tmp_path, 200)
    return tmp_path


def write_fleets(folder: Path, learners: int) -> None:
    for name, line in FLEETS.items():
        (folder / f"{name}.toml").write_text(PHONES.format(learners) + line + "\n")


def plan(fleet: str, *options: str) -> Result:
    return run_melisma("plan", "task.toml", "--fleet", f"{fleet}.toml", *options)


def simulate(fleet: str, scheme: str) -> Report:
    return run(prepare("task.toml", f"{fleet}.toml", SimulationOptions(scheme=scheme)))


def weight_in_time(report: Report) -> float:
    """Return the mean share of the dispatched weight whose update arrives by the deadline."""
    shares = []
    for cycle in report.cycles:
        rows = cycle.assignments
        in_time = rows.with_status("counted") & (rows.arrived_s <= cycle.began_s + 20.0 + 1e-6)
        shares.append(rows.samples[in_time].sum() / rows.samples.sum())
    return float(sum(shares) / len(shares))


@pytest.mark.parametrize("scheme", ["dab", "synchronous"])
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("learners", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_a_forecast_is_that_of_a_simulation(
    learners: int, fleet: str, scheme: str, folder: Path
) -> None:
    write_fleets(folder, learners)
    result = plan(fleet, "--scheme", scheme, "--json")
    printed = parse_json(result.stdout)
    expected: dict[str, Any] = printed["forecast"]
    simulated = simulate(fleet, scheme)
    # The forecast simulates further seeds, too.
    assert expected["weight_in_time"] == pytest.approx(weight_in_time(simulated), abs=0.03)
    assert expected["cycles_in_time"] == pytest.approx(simulated.satisfaction, abs=0.1)
    assert printed["keeps_deadline"] is (simulated.satisfaction >= 0.9)
    assert result.code == (0 if printed["keeps_deadline"] else 1)


@pytest.mark.parametrize(
    ("fleet", "scheme", "lines"),
    [
        (
            "sleepers",
            "dab",
            [
                "about 145 of 200 learners awake on average, 200 at start",
                (
                    "about 91% of the planned weight arrives by 20 s, and a cycle closes then "
                    "with the quorum of 80%"
                ),
            ],
        ),
        (
            "sleepers",
            "synchronous",
            [
                "about 145 of 200 learners awake on average, 200 at start",
                PARTIAL,
                WARNING,
            ],
        ),
        (
            "noisy",
            "synchronous",
            [
                (
                    "about 97% of the planned weight arrives by 20 s, and a cycle closes then "
                    "with the quorum of 80%"
                ),
            ],
        ),
        ("plain", "dab", ["all learners finish by 20 s"]),
    ],
)
def test_a_forecast_is_printed(fleet: str, scheme: str, lines: list[str]) -> None:
    printed = plan(fleet, "--scheme", scheme, "--show", "0").stdout.splitlines()
    assert printed[5:-1] == [*lines, EXTENSION]
    assert re.fullmatch(
        r"in a simulated run, learners( that are present)? use \d+% of their capacity, "
        r"and staleness is up to [\d.,]+",
        printed[-1],
    )


def test_figures_of_a_simulated_run_are_printed_and_in_the_forecast() -> None:
    forecast = parse_json(plan("plain", "--json").stdout)["forecast"]
    assert 0.9 < forecast["capacity_used"] <= 1
    assert forecast["max_staleness"] > 0  # the plan of dab has none
    line = plan("plain", "--show", "0").stdout.splitlines()[-1]
    assert line.endswith(f"staleness is up to {forecast['max_staleness']:,.0f}")


@pytest.mark.parametrize("scheme", ["dab", "synchronous"])
def test_seconds_of_a_plan_take_overlap_into_account(scheme: str, folder: Path) -> None:
    task = TASK.replace("passes = 40", "passes = 2").replace('mode = "federated"\n', "")
    plans = {}
    for overlap in ("true", "false"):
        (folder / "task.toml").write_text(task + f"overlap = {overlap}\n")
        plans[overlap] = parse_json(plan("plain", "--scheme", scheme, "--json").stdout)
    rows = zip(plans["true"]["learners"], plans["false"]["learners"], strict=True)
    for overlapped, added in rows:
        if scheme == "synchronous":
            assert overlapped["shards"] == added["shards"]
            assert overlapped["seconds"] < added["seconds"]
        else:
            assert overlapped["shards"] >= added["shards"]


def test_a_comparison_warns_of_schemes_below_the_quorum(folder: Path) -> None:
    write_fleets(folder, 50)
    lines = plan("sleepers", "--all").stdout.splitlines()
    assert any(line.startswith("synchronous: warning: about 15%") for line in lines)
    assert not any(line.startswith("dab: warning") for line in lines)


def test_with_a_quorum_of_1_one_late_update_delays_a_cycle(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK + 'quorum = 1.0\nlate = "drop"\n')
    printed = parse_json(plan("states", "--json").stdout)
    assert printed["forecast"]["cycles_in_time"] == simulate("states", "dab").satisfaction == 0
    assert printed["keeps_deadline"] is False


def test_learners_that_run_out_of_battery_are_forecast(folder: Path) -> None:
    battery = "availability = { battery_j = 30 }\nenergy = { sample_j = 0.002 }\n"
    mains = '[[fleet.learner]]\nname = "mains"\nprofile = "phone"\n'
    (folder / "batteries.toml").write_text(PHONES.format(10) + battery + mains)
    printed = plan("batteries", "--show", "0").stdout
    # In the first of 20 cycles there are 11 learners, and one after that.
    assert "about 1.5 of 11 learners awake on average, 11 at start\n" in printed
    assert "warning: about 10 learners run out of battery during the run" in printed
    assert "all learners finish" not in printed
    assert "learners that are present use" in printed

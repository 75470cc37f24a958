"""Learners of schemes that plan several tasks measure each of their states, and report little."""

import time
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.states import cycle_states
from melisma.live import protocol
from melisma.live.learner import agent
from melisma.live.learner.agent import Agent
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import EmulatedDevice, LearnerSettings, OperatingState
from melisma.live.learner.state_reports import StateReports
from tests.live.learner import counting_task
from tests.live.learner.played_orchestrator import TASK, PlayedOrchestrator
from tests.live.learner.test_training_spool import COSTS

PROBABILITY = (0.25, 0.75)
STATES = (OperatingState(0.25), OperatingState(0.75, 0.2, 0.5), OperatingState(0.0, 0.01))
SEED = 5


def emulate(**settings: Any) -> EmulatedDevice:
    """Return a device that trains a shard in 0.04 s, or 0.2 s."""
    device = EmulatedDevice(0.5, 1e8, 1e8, 0.0, STATES, SEED, sample_s=0.002)
    return msgspec.structs.replace(device, **settings)


def state_in(cycle: int) -> int:
    return int(cycle_states(cycle, np.array([PROBABILITY]), SEED, np.zeros(1, np.int64))[0])


class Learner:
    """An agent that carries out instructions and leaves, on a device that keeps its spool."""

    def __init__(self, folder: Path, scheme: str, device: EmulatedDevice | None = None) -> None:
        self.orchestrator = PlayedOrchestrator(msgspec.structs.replace(TASK, scheme=scheme))
        self._folder, self._device = folder, device or emulate()
        self._sessions = 0

    def make(self, device: EmulatedDevice | None, states: Path | None = None) -> Agent:
        settings = LearnerSettings(
            name="a",
            orchestrator=(),
            cache=str(self._folder / "cache"),
            spool=str(self._folder / "spool"),
            allowed_modules=(counting_task.__name__,),
            device=device,
            states=None if states is None else str(states),
        )
        self._sessions += 1
        session = f"session-{self._sessions}"
        self.orchestrator.start_session(session)
        connection = cast(Connection, self.orchestrator)
        return Agent(settings, connection, self.orchestrator.registered(), session)

    def run(self, *instructions: protocol.AnyInstruction) -> tuple[Agent, list[Any]]:
        """Return the agent, and the tables of costs that it has reported, of updates too."""
        agent = self.make(self._device)
        self.orchestrator.calls.clear()
        self.orchestrator.updates.clear()
        self.orchestrator.put(*instructions, protocol.Leave())
        agent._spool.clear = agent._spool.flush  # type: ignore[method-assign, assignment]
        agent.run()
        calls = [args[1] for name, args in self.orchestrator.calls if name == "report_costs"]
        return agent, calls + [header.costs for header, _ in self.orchestrator.updates]


def reports_of(agent: Agent) -> StateReports:
    assert agent._reports is not None
    return agent._reports


def means(table: Any) -> Any:
    return np.array(table)[:, 0]


def mean_costs(reports: StateReports, state: int) -> Any:
    return means(reports.histories[state].costs())


def test_expected_costs_are_those_of_all_states_by_their_probabilities(tmp_path: Path) -> None:
    agent, (table,) = Learner(tmp_path, "med").run(protocol.RunBenchmark(2.0))
    reports = reports_of(agent)
    # The state of probability 0 does not exist.
    assert sorted(reports.histories) == [0, 1]
    fast, slow = (mean_costs(reports, state) for state in (0, 1))
    assert slow[0] > 1.5 * fast[0]
    assert means(table) == pytest.approx(0.25 * fast + 0.75 * slow)
    assert agent._device.state == state_in(0)


def test_measured_costs_are_those_of_the_state_in_which_the_benchmark_ran(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "mmtt")
    train = learner.orchestrator.train(0)
    agent, (table, of_update) = learner.run(protocol.RunBenchmark(1.0), train)
    assert list(reports_of(agent).histories) == [state_in(0)]
    assert means(table) == pytest.approx(mean_costs(reports_of(agent), state_in(0)))
    assert of_update is None
    again, (after,) = learner.run(protocol.RunBenchmark(1.0))
    assert after == table  # of the earlier process
    assert reports_of(again).measured_in == state_in(0)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_present_costs_are_those_of_the_state_of_the_next_round(
    tmp_path: Path, number: int
) -> None:
    learner = Learner(tmp_path, "mmtt-ideal")
    agent, (first, second) = learner.run(
        protocol.RunBenchmark(1.0), protocol.RunBenchmark(1.0, round=number)
    )
    reports = reports_of(agent)
    assert means(first) == pytest.approx(mean_costs(reports, state_in(1)))
    # The second report takes no benchmark.
    assert means(second) == pytest.approx(mean_costs(reports, state_in(number)))


def test_a_cycle_corrects_the_costs_of_its_state_only(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "med")
    train = msgspec.structs.replace(learner.orchestrator.train(0, 1), round=4)
    agent, (before, after) = learner.run(protocol.RunBenchmark(1.0), train)
    reports, trained = reports_of(agent), state_in(4)
    assert reports.histories[trained].train_s.count > reports.histories[1 - trained].train_s.count
    assert means(before)[0] != means(after)[0]
    assert agent._device.state == trained


def test_an_estimate_follows_the_states_of_cycles_and_survives_a_restart(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "med", emulate(state_probabilities="estimated"))
    agent, _ = learner.run(protocol.RunBenchmark(1.0), learner.orchestrator.train(0))
    reports, trained = reports_of(agent), state_in(1)
    successor, (table,) = learner.run(protocol.RunBenchmark(1.0))
    fast, slow = (mean_costs(reports_of(successor), state) for state in (0, 1))
    weights = [2 / 3, 1 / 3] if trained == 0 else [1 / 3, 2 / 3]
    assert means(table) == pytest.approx(weights[0] * fast + weights[1] * slow)
    assert fast == pytest.approx(mean_costs(reports, 0))
    # The same cycle after a restart counts once.
    reports_of(successor).enter(1)
    assert reports_of(successor).save().counts == reports.save().counts


def test_a_real_device_does_not_know_its_next_state(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="use scheme med for others"):
        Learner(tmp_path, "mmtt-ideal").make(None)
    agent = Learner(tmp_path, "med").make(None)
    assert reports_of(agent).states_to_measure() == [0]


def test_saved_states_of_a_device_with_others_are_not_used() -> None:
    reports = StateReports(Device(emulate()), "expected")
    reports.record_benchmark(COSTS)
    other = Device(emulate(states=STATES[:2]))
    assert not StateReports(other, "expected", reports.save()).histories


def test_a_real_device_with_a_file_of_states_knows_its_next_one(tmp_path: Path) -> None:
    file = tmp_path / "states.toml"
    table = '[[state]]\nprobability = {}\nstress = "{}"\n'
    file.write_text("seed = 5\n" + table.format(0.25, "") + table.format(0.75, "training"))
    agent = Learner(tmp_path, "mmtt-ideal").make(None, file)
    assert reports_of(agent).states_to_measure() == [0, 1]
    device = agent._device
    assert [device.state_in(cycle) for cycle in range(20)] == list(map(state_in, range(20)))
    device.enter(1)
    assert device.stress == "training"
    assert device.stress_pacer(time.sleep) is None


def test_states_share_the_time_of_a_benchmark_evenly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[int, float]] = []

    def measure(*arguments: Any, **_settings: Any) -> Any:
        device, until_at = arguments[-2:]
        measured.append((device.state, until_at))
        return COSTS

    monkeypatch.setattr(agent, "run_subset_benchmark", measure)
    learner, began = Learner(tmp_path, "med").make(emulate()), time.monotonic()
    learner._measure(began + 9.0)
    ended = time.monotonic()
    (first, half_at), (second, end_at) = measured
    assert [first, second] == [0, 1]
    assert end_at == pytest.approx(began + 9.0)
    assert began + 4.5 <= half_at <= (ended + began + 9.0) / 2
    assert learner._costs is COSTS

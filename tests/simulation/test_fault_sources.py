from functools import partial
from typing import Any

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.fleet import Fleet
from melisma.simulation import SimulationOptions, simulate
from melisma.simulation.fault_sources import FaultSource, find_faults
from melisma.simulation.faults import Fault, parse_faults
from tests.simulation.scenarios import make_fleet, make_task

HERE = "tests.simulation.test_fault_sources:"


def one_crash(fleet: Fleet, until_s: float, rng: np.random.Generator) -> str:
    return f"crash {rng.choice(fleet.names)} at {until_s / 2:.6g}"


def as_objects(fleet: Fleet, until_s: float, rng: np.random.Generator) -> list[Fault]:
    return [Fault("slow", (fleet.learners - 1,), 1.0, 2.0, by=3.0)]


def too_high(fleet: Fleet, until_s: float, rng: np.random.Generator) -> list[Fault]:
    return [Fault("crash", (99,), 1.0)]


def numbers(fleet: Fleet, until_s: float, rng: np.random.Generator) -> Any:
    return [3, 4]


def raises(fleet: Fleet, until_s: float, rng: np.random.Generator) -> str:
    raise KeyError("phone")


def find(source: FaultSource, **settings: Any) -> tuple[Fault, ...]:
    return find_faults(source, make_task(**settings), make_fleet())


def test_a_function_returns_faults_as_text_or_objects() -> None:
    (crash,) = find(HERE + "one_crash")
    assert crash.kind == "crash"
    assert crash.at_s == 0.6 * make_task().expected_s
    assert find(as_objects) == (Fault("slow", (2,), 1.0, 2.0, by=3.0),)


def test_a_function_is_drawn_by_the_seed_of_the_task() -> None:
    found = {find(one_crash, seed=seed)[0].learners for seed in range(20)}
    assert found == {(0,), (1,), (2,)}
    assert find(one_crash, seed=3) == find(one_crash, seed=3)


class Crashes:
    def __call__(self, fleet: Fleet, until_s: float, rng: np.random.Generator) -> str:
        return f"crash 0 at {rng.uniform():.6g}"


def test_functions_without_a_name_of_their_own_are_drawn_alike_at_each_address() -> None:
    objects = [Crashes() for _ in range(9)]  # Nine that exist at once have nine addresses.
    assert len({find(each) for each in objects}) == 1
    partials = [partial(partial(one_crash)) for _ in range(9)]
    assert {find(each, seed=3) for each in partials} == {find(one_crash, seed=3)}


def test_functions_and_text_are_mixed() -> None:
    faults = find(f"crash hare at 2; {HERE}as_objects")
    assert [fault.kind for fault in faults] == ["crash", "slow"]


def test_a_run_has_the_faults_of_the_function() -> None:
    task, fleet = make_task(), make_fleet()

    def crash_all_but_the_first(fleet: Fleet, until_s: float, rng: np.random.Generator) -> str:
        return "; ".join(f"crash {name} at 0.5" for name in fleet.names[1:])

    options = SimulationOptions(work="timing", faults=crash_all_but_the_first)
    report = simulate(task, fleet, options)
    text = "crash hare at 0.5; crash fox at 0.5"
    same = simulate(task, fleet, SimulationOptions(work="timing", faults=text))
    assert report.as_dict() == same.as_dict()
    assert report.as_dict() != simulate(task, fleet, SimulationOptions(work="timing")).as_dict()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (HERE + "raises", r"faults .*:raises: KeyError: 'phone' \(test_fault_sources.py, line"),
        (HERE + "too_high", "faults .*:too_high: fault 'crash 99 at 1': unknown learner 99"),
        (HERE + "numbers", r"faults .*:numbers: returned a int; expected Fault\(...\) or text"),
        (HERE + "missing", "has no missing"),
        ("no_such_module:faults", "ModuleNotFoundError"),
        (("crash 1 at 2",), r"faults: a tuple contains 'crash 1 at 2' \(str\); expected Fault"),
        ((Fault("crash", (99,), 1.0),), "fault 'crash 99 at 1': unknown learner 99"),
    ],
)
def test_an_error_in_the_faults_names_them(source: FaultSource, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        find(source)


def test_text_is_parsed_with_the_names_of_the_fleet() -> None:
    assert find("crash hare at 3") == parse_faults("crash 1 at 3", 3)

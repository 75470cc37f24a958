import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import (
    FAULT_KINDS,
    GREEDY,
    Fault,
    Slowness,
    format_faults,
    greedy_learners,
    parse_faults,
    random_faults,
    random_orchestrator_faults,
)


def test_random_faults_of_every_kind_survive_formatting_and_parsing() -> None:
    kinds = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        faults = random_faults(rng, 5, 60.0)
        faults += random_orchestrator_faults(rng, 5, 60.0, 100, disk=seed % 2 == 0)
        assert parse_faults(format_faults(faults), 5) == faults
        kinds |= {fault.kind for fault in faults}
    # Cheating lasts the whole run, and is no accident.
    assert kinds == {*FAULT_KINDS} - {GREEDY}


@pytest.mark.parametrize("greed", ["speed", "ask", "less", "noise", "copy"])
def test_greedy_learners_survive_formatting_and_parsing(greed: str) -> None:
    faults = parse_faults(f"greedy {greed} 1,3; slow 2 at 1 for 2 by 3", 5)
    assert greedy_learners(faults) == {1: greed, 3: greed}
    assert not faults[0].of_orchestrator
    assert parse_faults(format_faults(faults), 5) == faults


def test_an_unknown_way_to_cheat_is_refused() -> None:
    with pytest.raises(SettingError, match="invalid fault 'greedy lies 1'"):
        parse_faults("greedy lies 1", 5)


def test_a_learner_that_boasts_is_taken_for_faster() -> None:
    slowness = Slowness(parse_faults("greedy speed 1; greedy less 2", 3))
    assert slowness(np.arange(3), np.zeros(3)).tolist() == [1.0, 0.5, 1.0]


def test_faults_are_parsed_from_text() -> None:
    crash, lose = parse_faults("crash 2 at 3.5 for 4 ; lose report 2 from 1", 3)
    assert crash == Fault("crash", (2,), 3.5, 4.0)
    assert lose == Fault("lose", (1,), message="report", nth=2)
    assert parse_faults("", 3) == ()


def test_a_fault_may_name_learners() -> None:
    targets = FaultTargets(3, ("pi-shed", "phone", "7"))
    crash, lose = parse_faults("crash phone,0 at 3; lose report 2 from pi-shed", targets)
    assert crash == Fault("crash", (1, 0), 3.0)
    assert lose == Fault("lose", (0,), message="report", nth=2)
    with pytest.raises(SettingError, match=r"unknown learner pished; did you mean pi-shed\?"):
        parse_faults("crash pished at 3", targets)
    with pytest.raises(SettingError, match="unknown learner 7; use 0 to 2"):
        parse_faults("crash 7 at 3", targets)


def test_a_fault_of_unknown_kind_is_an_error() -> None:
    with pytest.raises(SettingError) as caught:
        Fault("crush", (2,), 3.5)  # type: ignore[arg-type]
    assert str(caught.value) == "unknown kind of fault 'crush'; did you mean crash?"


@pytest.mark.parametrize("text", ["lose instruction 2 from 1", "lose report 3 to 0"])
def test_a_message_in_the_wrong_direction_is_an_error(text: str) -> None:
    with pytest.raises(SettingError, match=r"instruction|report"):
        parse_faults(text, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "crush 2 at 3",
            r"invalid fault 'crush 2 at 3': unknown kind 'crush'; did you mean crash\?",
        ),
        ("crash 2", "invalid fault .*; use, for example"),
        ("crash 7 at 3", "unknown learner 7; use 0 to 2"),
        ("slow 1 at 2 for 3 by 1000", "expected 0.01 to 100"),
        ("crash 1 at 1.2.3", "invalid number"),
        ("lose report 0 from 1", "invalid fault"),
        ("crash orchestrator at 3", "use, for example, 'crash orchestrator at 9 for 5'"),
        ("cut power at step 0 for 3", "use, for example, 'crash orchestrator at 9 for 5'"),
    ],
)
def test_the_error_names_the_invalid_fault(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse_faults(f"clock 0 by 1.1; {text}", 3)

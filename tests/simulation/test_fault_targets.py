import pytest

from melisma.errors import SettingError
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import Fault, format_faults, parse_faults
from tests.simulation.scenarios import make_fleet

PHONE = {"name": "phone", "count": 40, "samples_per_s": 100.0, "bandwidth_bps": 1e6}
PI = {"name": "pi", "count": 3, "samples_per_s": 200.0, "bandwidth_bps": 1e6}


def make_targets(seed: int = 1) -> FaultTargets:
    return FaultTargets.of_fleet(make_fleet(group=[PHONE, PI], seed=seed))


def hit(text: str, seed: int = 1) -> tuple[int, ...]:
    (fault,) = parse_faults(text, make_targets(seed))
    return fault.learners


def test_a_group_stands_for_its_learners() -> None:
    names = make_targets().names
    assert [names[learner] for learner in hit("crash pi at 3")] == ["pi-1", "pi-2", "pi-3"]
    assert hit("crash all at 3") == tuple(range(46))
    assert hit("crash phone-0*,hare at 3") == (*range(3, 12), 1)


def test_a_percentage_is_drawn_by_the_seed_and_does_not_depend_on_other_faults() -> None:
    text = "crash 10% of phone at 30"
    chosen = hit(text)
    assert len(chosen) == 4
    assert set(chosen) <= set(hit("crash phone at 30"))
    assert list(chosen) == sorted(chosen)
    assert hit(text) == chosen
    assert hit(text, seed=2) != chosen
    assert parse_faults(f"clock pi by 1.1; {text}", make_targets())[1].learners == chosen


def test_a_small_percentage_hits_one_learner_and_all_of_them_is_100_percent() -> None:
    assert len(hit("vanish 0.1% of pi at 3")) == 1
    assert hit("slow 100% of pi at 3 for 2 by 2") == hit("slow pi at 3 for 2 by 2")
    assert len(hit("lose report 2 from 50% of phone,pi")) == 22


def test_faults_are_formatted_by_names_and_read_back() -> None:
    targets = make_targets()
    text = "crash pi-1,hare at 3; slow 5% of phone at 3 for 2 by 2; lose report 1 from pi"
    faults = parse_faults(text, targets)
    formatted = format_faults(faults, targets)
    assert formatted.startswith("crash pi-1,hare at 3; slow phone-")
    assert formatted.endswith("lose report 1 from pi-1,pi-2,pi-3")
    assert parse_faults(formatted, targets) == faults


def test_many_learners_keep_the_words_of_their_choice() -> None:
    targets = make_targets()
    faults = parse_faults("crash 90% of phone at 3", targets)
    assert format_faults(faults, targets) == "crash 90% of phone at 3"
    assert parse_faults(format_faults(faults, targets), targets) == faults


def test_a_name_that_would_be_read_otherwise_is_formatted_as_a_number() -> None:
    targets = FaultTargets(3, ("2", "a b", "50%"))
    faults = (Fault("crash", (0, 1, 2), 3.0),)
    assert format_faults(faults, targets) == "crash 0,1,2 at 3"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crash tablets at 3", "use 0 to 45, a name, or a group: tortoise, hare, fox, phone, pi"),
        ("crash 10% of phones at 3", r"unknown learner phones; did you mean phone\?"),
        ("crash 0% of phone at 3", "0%; expected more than 0%, up to 100%"),
        ("crash 120% of phone at 3", "120%; expected more than 0%, up to 100%"),
        ("crash 10 % of phone at 3", "invalid fault"),
    ],
)
def test_an_unknown_group_or_percentage_is_an_error(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse_faults(text, make_targets())

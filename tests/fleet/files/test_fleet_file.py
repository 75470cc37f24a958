from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import read_fleet

LEARNER = '[[fleet.learner]]\nname = "pi"\n'
GROUP = "[[fleet.group]]\ncount = 2\n"
PHONE = 'profile = "phone"\n'
CELL = LEARNER + PHONE + "[fleet.cell]\n"
SIZE = "radius_m = 10\nbandwidth_hz = 1e6\npower_dbm = 20\n"


def read_error(tmp_path: Path, content: str) -> str:
    path = tmp_path / "FLEET.toml"
    path.write_text(content)
    with pytest.raises(SettingError) as caught:
        read_fleet(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "top level: fleet is missing"),
        (
            "[task]\n",
            "found [task], expected [fleet]; are TASK.toml and --fleet FLEET.toml swapped?",
        ),
        ("[fleet]\n", "fleet: has no learners: add [[fleet.learner]] or [[fleet.group]]"),
        ("[fleet]\nlearner = []\n", "fleet: has no learners"),
        (
            "[fleet.learner]\nname = 'a'\n",
            "fleet.learner: a single table; write [[fleet.learner]] w",
        ),
        (
            LEARNER + PHONE + "state = {}",
            "fleet.learner[pi].state: a single table; write [[fleet.learner.state]] with double b",
        ),
        ("[[fleet.learner]]\n" + PHONE, "fleet.learner[0]: name is missing"),
        ("[[fleet.learner]]\nname = ' '\n" + PHONE, "fleet.learner[0]: name is empty"),
        ('[[fleet.learner]]\nname = "a\\tb"\n' + PHONE, "fleet.learner[0]: name is 'a\\tb'; expec"),
        ("[[fleet.group]]\n" + PHONE, "fleet.group[0]: count is missing"),
        (GROUP + PHONE + "name = ''", "fleet.group[0]: name is empty"),
    ],
)
def test_a_fleet_needs_learners_with_valid_names(
    tmp_path: Path, content: str, message: str
) -> None:
    assert read_error(tmp_path, content).startswith(message)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LEARNER + PHONE, LEARNER + PHONE),
        (GROUP + PHONE, GROUP + PHONE),
        ('[[fleet.learner]]\nname = "phone-2"\n' + PHONE, GROUP + PHONE),
    ],
)
def test_duplicate_names_are_an_error(tmp_path: Path, first: str, second: str) -> None:
    message = read_error(tmp_path, first + second)
    assert "fleet: 2 learners have the name '" in message
    assert "rename one" in message


def test_thousands_of_single_learners_are_read(tmp_path: Path) -> None:
    content = "".join(f'[[fleet.learner]]\nname = "{n}"\n{PHONE}' for n in range(5000))
    path = tmp_path / "FLEET.toml"
    path.write_text(content)
    assert read_fleet(path).learners == 5000


SPEEDS = "a profile or one of compute, train_s, samples_per_s, clock_hz"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LEARNER, f"fleet.learner[pi]: speed is missing: add {SPEEDS}"),
        (GROUP, f"fleet.group[0]: speed is missing: add {SPEEDS}"),
        (
            LEARNER + "profile = 'phne'",
            "fleet.learner[pi]: profile 'phne' is unknown; did you mean phone?",
        ),
        (
            LEARNER + PHONE + "compute = 1\ntrain_s = 1",
            "fleet.learner[pi]: compute and train_s all give the speed; keep one of them",
        ),
        (
            GROUP + "samples_per_s = 1\nclock_hz = 1",
            "fleet.group[0]: samples_per_s and clock_hz all give the speed",
        ),
        (
            LEARNER + PHONE + "cycles_per_sample = 9",
            "fleet.learner[pi]: cycles_per_sample needs clock_hz",
        ),
        (
            LEARNER + "compute = 0.1",
            "fleet: learner 'pi' has no bandwidth_bps; add it, a profile, or a [fleet.cell]",
        ),
        (GROUP + "compute = 0.1", "fleet: learner 'group-1-1' has no bandwidth_bps"),
        (
            LEARNER + "compute = 0.1\nuplink_bps = 1e6",
            "fleet: learner 'pi' has no downlink_bps; add it, bandwidth_bps, a profile, or a [",
        ),
        (
            LEARNER + PHONE + "bandwidth_bps = 1\ndownlink_bps = 1\nuplink_bps = 1",
            "fleet.learner[pi]: bandwidth_bps has no effect beside downlink_bps and uplink_bps; re",
        ),
    ],
)
def test_speed_and_link_are_given_exactly_once(tmp_path: Path, content: str, message: str) -> None:
    assert read_error(tmp_path, content).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LEARNER + PHONE + "bandwith_bps = 1", "unknown key bandwith_bps; did you mean bandwidth_"),
        # `states` is for groups, `state` for a learner.
        (
            LEARNER + PHONE + "states = {}",
            "fleet.learner[pi]: unknown key states; did you mean sta",
        ),
        (GROUP + PHONE + "state = []", "fleet.group[0]: unknown key state; did you mean states?"),
        (GROUP + PHONE + "spread.comput = 1", "fleet.group[0].spread: unknown key comput; did you"),
        (
            GROUP + PHONE + "spread.train_s = 1",
            "spread: unknown key train_s; expected one of compute, bandwidth_bps, downlink_bps, up",
        ),
        ("[fleet]\nxyz = 1\n" + LEARNER + PHONE, "fleet: unknown key xyz; expected one of learner"),
        (CELL + SIZE + "radius = 1", "fleet.cell: unknown key radius; did you mean radius_m?"),
    ],
)
def test_an_unknown_key_is_reported_with_a_similar_key_of_the_same_table(
    tmp_path: Path, content: str, message: str
) -> None:
    assert message in read_error(tmp_path, content)


def test_a_hint_is_never_the_unknown_key_itself(tmp_path: Path) -> None:
    assert read_error(tmp_path, LEARNER + "states = {}").endswith("did you mean state?")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LEARNER + "train_s = 'fast'", "fleet.learner[pi].train_s: 'fast'; expected a number"),
        (LEARNER + PHONE + "threshold = 1.5", "fleet.learner[pi].threshold: 1.5; expected a whole"),
        (LEARNER + PHONE + "threshold = -1", "threshold: -1; expected a whole number of at least"),
        (
            LEARNER + PHONE + "price = -1",
            "fleet.learner[pi].price: -1; expected a number of at lea",
        ),
        (LEARNER + PHONE + "latency_s = -0.1", "latency_s: -0.1; expected a number of at least 0"),
        (LEARNER + "compute = 0", "fleet.learner[pi].compute: 0; expected a number above 0"),
        (GROUP.replace("2", "0"), "fleet.group[0].count: 0; expected a whole number of at least 1"),
        (GROUP.replace("2", "1.5"), "fleet.group[0].count: 1.5; expected a whole number"),
        (GROUP.replace("2", "99999999999999"), "expected a whole number of at most 10000000"),
        (GROUP + PHONE + "price = 'low'", "price: 'low'; expected a number or a table"),
        (
            GROUP + PHONE + "price = { low = 2.0, high = 1.5 }",
            "fleet.group[0].price: low is 2; expected at most high, 1.5",
        ),
        (
            GROUP + PHONE + "own_samples = 0",
            "own_samples: 0; expected a whole number of at least 1",
        ),
        (
            GROUP + PHONE + "own_samples = { mean = 9, spread = 0.6, distribution = 'uniform' }",
            "own_samples: spread is 0.6; expected at most 0.57",
        ),
        ("[fleet]\nseed = 1.5\n" + LEARNER + PHONE, "fleet.seed: 1.5; expected a whole number"),
        ("[fleet]\nbudget = -1\n" + LEARNER + PHONE, "fleet.budget: -1; expected a number of at"),
        (CELL + "radius_m = 10", "fleet.cell: bandwidth_hz is missing"),
        (
            CELL + SIZE + "path_loss = 'rural'",
            "path_loss: 'rural'; did you mean urban?",
        ),
        (
            CELL + SIZE + "placement = 'x'",
            "fleet.cell.placement: 'x'; expected one of edge, unifor",
        ),
        (
            CELL + SIZE + "fading = 'rice'",
            "fleet.cell.fading: 'rice'; expected one of none, raylei",
        ),
    ],
)
def test_a_wrong_type_or_range_is_reported(tmp_path: Path, content: str, message: str) -> None:
    assert message in read_error(tmp_path, content)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(
    "table_and_key",
    [
        *(
            f"learner:{key}"
            for key in (
                "compute",
                "train_s",
                "samples_per_s",
                "clock_hz",
                "cycles_per_sample",
                "bandwidth_bps",
                "downlink_bps",
                "uplink_bps",
                "latency_s",
                "base_s",
                "price",
            )
        ),
        *(f"group:{key}" for key in ("spread.compute", "spread.latency_s", "price", "price.sd")),
        *(f"fleet:{key}" for key in ("core_ops_per_s", "cell.radius_m", "cell.power_dbm")),
    ],
)
def test_nan_and_infinity_are_errors(tmp_path: Path, table_and_key: str, value: str) -> None:
    table, _, key = table_and_key.partition(":")
    line = f"{key} = {value}\n"
    content = {
        "learner": LEARNER + line,
        "group": GROUP + PHONE + line,
        "fleet": "[fleet]\n" + line + LEARNER + PHONE,
    }[table]
    message = read_error(tmp_path, content)
    assert f"{key}: " in message
    assert "; expected a number " in message


def test_a_budget_may_be_infinite_but_not_nan(tmp_path: Path) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text("[fleet]\nbudget = inf\n" + LEARNER + PHONE)
    assert read_fleet(path).budget == float("inf")
    message = read_error(tmp_path, "[fleet]\nbudget = nan\n" + LEARNER + PHONE)
    assert message == "fleet.budget: nan; expected a number of at least 0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "state = [{ probability = 0.5 }, { probability = 0.4 }]",
            "fleet.learner[pi]: probabilities of the states sum to 0.9; expected 1",
        ),
        ("state = [{ compute = 1 }]", "fleet.learner[pi].state[0]: probability is missing"),
        ("state = [{ probability = 1.5 }]", "state[0].probability: 1.5; expected a number of at "),
        ("state = [{ probability = nan }]", "state[0].probability: nan; expected a number of at "),
        (
            "state = [{ probability = 1, compute = 0 }]",
            "fleet.learner[pi].state[0].compute: 0; expected a number above 0",
        ),
        ("state = { probability = 1 }", "state: a single table; write [[fleet.learner.state]]"),
    ],
)
def test_probabilities_of_states_are_valid_and_sum_to_1(
    tmp_path: Path, content: str, message: str
) -> None:
    assert message in read_error(tmp_path, LEARNER + PHONE + content)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ("{ compute = [1] }", "fleet.group[0].states: bandwidth is missing"),
        (
            "{ compute = [1], bandwidth = [1, 2] }",
            "fleet.group[0].states: compute has 1 factors and bandwidth 2; expected one factor for",
        ),
        (
            "{ compute = [], bandwidth = [] }",
            "compute has 0 factors and bandwidth 0; expected one factor for each state",
        ),
        ("{ compute = [nan], bandwidth = [1] }", "fleet.group[0].states.compute[0]: nan; expect"),
        ("{ compute = [1], bandwidth = [1], heat = 0 }", "fleet.group[0].states.heat: 0; expecte"),
        (
            '{ compute = [1], bandwidth = [1], stress = ["", "training"] }',
            "stress has 2 names and compute 1 factors; expected one name for each state",
        ),
        (
            '{ compute = [1], bandwidth = [1], stress = ["dancing"] }',
            "stress 'dancing' is unknown; expected 'training', 'downloading', or a function",
        ),
    ],
)
def test_states_of_a_group_are_lists_of_the_same_length(
    tmp_path: Path, states: str, message: str
) -> None:
    assert message in read_error(tmp_path, GROUP + PHONE + f"states = {states}")


@pytest.mark.parametrize("table", [LEARNER + PHONE, GROUP + PHONE])
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("energy = { sample_j = -1 }", "energy.sample_j: -1; expected a number of at least 0"),
        ("energy = { byte_j = inf }", "energy.byte_j: inf; expected a number of at most 1e+30"),
        ("energy = { joules = 1 }", "energy: unknown key joules; expected one of sample_j, byte_j"),
        ("energy = 3", "energy: 3; expected a table"),
        ("availability.joins_s = -1", "availability.joins_s: -1; expected a number of at least 0"),
        ("availability.leaves_s = 0", "availability.leaves_s: 0; expected a number above 0"),
        (
            "availability = { joins_s = 30, leaves_s = 30 }",
            "availability: leaves_s is 30; expected more than joins_s, 30",
        ),
        (
            "availability = { awake_s = 30 }",
            "availability: awake_s and asleep_s are needed together; asleep_s is missing",
        ),
        (
            "availability = { asleep_s = 30 }",
            "availability: awake_s and asleep_s are needed together; awake_s is missing",
        ),
        ("availability.awake_s = 0", "availability.awake_s: 0; expected a number above 0"),
        ("availability.join_s = 1", "unknown key join_s; did you mean joins_s?"),
    ],
)
def test_invalid_energy_and_availability_are_reported(
    tmp_path: Path, table: str, lines: str, message: str
) -> None:
    assert message in read_error(tmp_path, table + lines)


@pytest.mark.parametrize(
    ("spread", "message"),
    [
        (
            'compute = 0.4, distribution = "normal"',
            'compute is 0.4; expected at most 0.333 with distribution = "normal"; use "lognormal"',
        ),
        (
            'latency_s = 0.6, distribution = "uniform"',
            'latency_s is 0.6; expected at most 0.57 with distribution = "uniform"; use "log',
        ),
        ('distribution = "gamma"', "'gamma'; expected one of lognormal, normal, uniform"),
    ],
)
def test_a_spread_that_could_reach_0_is_an_error(tmp_path: Path, spread: str, message: str) -> None:
    assert message in read_error(tmp_path, GROUP + PHONE + f"spread = {{ {spread} }}")


def test_a_missing_trace_is_reported(tmp_path: Path) -> None:
    message = read_error(tmp_path, '[fleet]\ntrace = "none.csv"\n' + LEARNER + PHONE)
    assert message == f"fleet.trace: {tmp_path / 'none.csv'}: no such file or directory"


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.toml: no such file or directory"):
        read_fleet(tmp_path / "none.toml")
    with pytest.raises(SettingError, match=r": is a directory"):
        read_fleet(tmp_path)
    assert read_error(tmp_path, "[fleet").startswith("not TOML: ")

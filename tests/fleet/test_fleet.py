from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.backports import tomllib
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.emulation import ComputePacer
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetFile
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task, TaskSizes
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import EmulatedDevice, OperatingState

TASK = Task(
    name="t",
    model="any",
    data="any",
    deadline_s=10.0,
    shard_samples=100,
    sizes=TaskSizes(samples=1000, sample_bytes=50, model_bytes=2000, sample_ops=6e5),
)
FEDERATED = msgspec.structs.replace(TASK, mode="federated")


def build(*learners: str) -> Fleet:
    """Build a fleet from the lines of each learner; the default link is 8 kB/s and 10 ms."""
    link = "bandwidth_bps = 64_000\nlatency_s = 0.01\n"
    tables = [
        f'[[fleet.learner]]\nname = "{number}"\n{"" if "bandwidth_bps" in lines else link}{lines}\n'
        for number, lines in enumerate(learners)
    ]
    return build_fleet(msgspec.convert(tomllib.loads("".join(tables)), FleetFile).fleet)


@pytest.mark.parametrize(
    ("speed", "shard_s"),
    [
        ("train_s = 2.5", 2.5),
        ("samples_per_s = 40", 100 / 40),
        ("clock_hz = 1e6\ncycles_per_sample = 2e3", 100 * 2e3 / 1e6),
        # Without cycles_per_sample, one operation per cycle is assumed.
        ("clock_hz = 1e6", 100 * 6e5 / 1e6),
        ("compute = 0.5", 100 * 6e5 / 0.5e10),
        ('profile = "phone"', 100 * 6e5 / 0.3e10),
    ],
)
def test_training_time_follows_from_the_speed(speed: str, shard_s: float) -> None:
    fleet = build(speed)
    assert fleet.train_s(TASK).tolist() == pytest.approx([shard_s])
    assert fleet.sample_seconds(TASK).tolist() == pytest.approx([shard_s / 100])


def test_speeds_in_different_units_can_be_mixed() -> None:
    fleet = build("train_s = 2.5", "samples_per_s = 40", "clock_hz = 1e6", "compute = 0.5")
    assert fleet.train_s(TASK).tolist() == pytest.approx([2.5, 2.5, 60.0, 0.012])


def test_data_and_model_are_transferred_at_the_bandwidth_each_with_a_latency() -> None:
    fleet = build("compute = 1", "compute = 1\nbandwidth_bps = 128_000\nlatency_s = 0")
    assert fleet.ship_s(TASK).tolist() == [0.01 + 100 * 50 / 8000, 100 * 50 / 16000]
    assert fleet.fixed_s(TASK).tolist() == pytest.approx([2 * (0.25 + 0.01), 2 * 0.125])


def test_data_and_model_use_the_downlink_and_the_update_uses_the_uplink() -> None:
    fleet = build("compute = 1\nlatency_s = 0\nbandwidth_bps = 64_000\nuplink_bps = 16_000")
    assert fleet.ship_s(TASK).tolist() == [100 * 50 / 8000]
    assert fleet.fixed_s(TASK).tolist() == pytest.approx([0.25 + 1.0])
    assert fleet.state_costs(TASK).fixed_s.tolist() == [pytest.approx([0.25 + 1.0])]


def test_federated_learning_ships_no_data() -> None:
    fleet = build("compute = 1", 'profile = "phone"')
    assert fleet.ship_s(FEDERATED).tolist() == [0.0, 0.0]
    assert fleet.fixed_s(FEDERATED).tolist() == fleet.fixed_s(TASK).tolist()
    assert fleet.state_costs(FEDERATED).quantile(0.9)["ship_s"].tolist() == [0.0, 0.0]


BUSY = """
train_s = 2.0
state = [
    { probability = 0.5 },
    { probability = 0.3, compute = 0.5, bandwidth = 0.8 },
    { probability = 0.2, compute = 0.8, bandwidth = 0.25 },
]
"""


def test_costs_in_a_state_follow_from_its_shares_of_compute_and_bandwidth() -> None:
    fleet = build(BUSY, "train_s = 1.0")
    assert {
        name: each.tolist()
        for name, each in fleet.state_costs(TASK).in_states(np.array([2, 0])).items()
    } == {
        "train_s": [2.0 / 0.8, 1.0],
        "ship_s": pytest.approx([0.625 / 0.25 + 0.01, 0.635]),
        "fixed_s": pytest.approx([0.5 / 0.25 + 0.02, 0.52]),
    }


def test_expected_costs_are_the_mean_over_states() -> None:
    mean = build(BUSY, "train_s = 1.0").state_costs(TASK).mean()
    slow, narrow = 0.5 + 0.3 / 0.5 + 0.2 / 0.8, 0.5 + 0.3 / 0.8 + 0.2 / 0.25
    assert mean["train_s"].tolist() == pytest.approx([2.0 * slow, 1.0])
    assert mean["ship_s"].tolist() == pytest.approx([0.625 * narrow + 0.01, 0.635])
    assert mean["fixed_s"].tolist() == pytest.approx([0.5 * narrow + 0.02, 0.52])


def test_a_state_does_not_change_the_latency() -> None:
    slow = "compute = 1\nbandwidth_bps = 1e30\nlatency_s = 0.5\n"
    fleet = build(slow + "state = [{ probability = 1.0, bandwidth = 0.01 }]")
    costs = fleet.state_costs(TASK)
    for each in (costs.in_states(np.array([0])), costs.mean()):
        assert each["ship_s"].tolist() == pytest.approx([0.5])
        assert each["fixed_s"].tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("caution", [0.5, 0.7, 0.8, 0.9, 0.95])
def test_drawn_states_exceed_planned_costs_no_more_often_than_caution_allows(
    caution: float,
) -> None:
    # One state slows training and another the link, so neither is slower in all costs.
    fleet = build(
        BUSY, BUSY.replace("0.5 }", "0.8 }").replace("0.3,", "0.1,").replace("0.2,", "0.1,")
    )
    rng = np.random.default_rng(6)
    drawn = [fleet.state_costs(TASK).in_states(fleet.draw_states(rng)) for _ in range(4_000)]
    planned = fleet.state_costs(TASK).quantile(caution)
    for shards, passes in ((1, 1), (30, 1), (2, 9)):

        def seconds(costs: dict[str, Floats], a: int = shards, b: int = passes) -> Floats:
            return costs["fixed_s"] + a * (costs["ship_s"] + b * costs["train_s"])

        late = np.mean([seconds(each) > seconds(planned) for each in drawn], axis=0)
        assert np.all(late <= 1 - caution + 0.02)


@given(shards=st.integers(1, 50), passes=st.integers(1, 9))
def test_a_cycles_expected_seconds_are_the_mean_of_those_in_each_state(
    shards: int, passes: int
) -> None:
    # Eq. 4.1 of Mays' thesis: the cost model is linear, so expectations can be taken of its parts.
    fleet = build(BUSY)

    def seconds(costs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> float:
        return float(
            costs["fixed_s"][0] + shards * (costs["ship_s"][0] + passes * costs["train_s"][0])
        )

    each = [seconds(fleet.state_costs(TASK).in_states(np.array([state]))) for state in range(3)]
    expected = float(fleet.state_probability[0] @ each)
    assert seconds(fleet.state_costs(TASK).mean()) == pytest.approx(expected)


def test_states_are_drawn_with_their_probabilities() -> None:
    fleet = build(BUSY, "train_s = 1.0", BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"))
    rng = np.random.default_rng(2)
    drawn = np.array([fleet.draw_states(rng) for _ in range(20_000)])
    frequency = [np.bincount(each, minlength=3) / 20_000 for each in drawn.T]
    assert frequency[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.015)
    assert frequency[1].tolist() == [1, 0, 0]
    assert frequency[2].tolist() == pytest.approx([0, 0.8, 0.2], abs=0.015)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.03


def constant_generator(number: float) -> np.random.Generator:
    """Return a generator that always draws `number`."""
    return cast(np.random.Generator, SimpleNamespace(random=lambda size: np.full(size, number)))


def test_a_state_of_probability_0_is_never_drawn() -> None:
    fleet = build(BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"), "train_s = 1.0")
    assert fleet.draw_states(constant_generator(0.0)).tolist() == [1, 0]
    assert fleet.draw_states(constant_generator(np.nextafter(1.0, 0.0))).tolist() == [2, 0]


@pytest.mark.parametrize("speed", ["train_s", "samples_per_s", "clock_hz", "compute"])
@pytest.mark.parametrize("figure", ["1e-30", "1e30"])
@pytest.mark.parametrize("left", ["1e-30", "1e30"])
def test_costs_are_finite_at_the_limits_of_all_keys(speed: str, figure: str, left: str) -> None:
    state = f"{{ probability = 0.5, compute = {left}, bandwidth = {left} }}"
    fleet = build(
        f"{speed} = {figure}\nbandwidth_bps = {figure}\nlatency_s = 1e30\n"
        f"state = [{state}, {{ probability = 0.5 }}]"
    )
    for share in (0.001, 0.999):
        for seconds in fleet.state_costs(TASK).quantile(share).values():
            assert np.all(np.isfinite(seconds) & (seconds >= 0))


def federated_task(count: int, **changes: object) -> Task:
    sizes = TaskSizes(samples=100 * count, sample_bytes=50, model_bytes=2000, sample_ops=6e5)
    return msgspec.structs.replace(FEDERATED, sizes=sizes, **changes)


@given(learners=st.integers(1, 9), extra=st.integers(0, 40))
def test_federated_shards_are_divided_evenly_over_devices(learners: int, extra: int) -> None:
    fleet, task = build(*["compute = 1"] * learners), federated_task(learners + extra)
    own = fleet.local_shards(task)
    assert own.dtype == np.int64
    assert own.sum() == task.shards
    assert np.ptp(own) <= 1
    assert own.tolist() == sorted(own, reverse=True)
    assert fleet.local_shards(TASK).tolist() == [0] * learners


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            federated_task(2),
            "task t: 2 shards on 3 devices leave 0 to some; .* use shard_samples <= 66$",
        ),
        (
            federated_task(7, min_shards=3),
            "leave 2 to some; expected at least min_shards, 3: .* <= 77$",
        ),
        (federated_task(7, min_shards=300), "leave 2 to some; expected at least min_shards, 300$"),
    ],
)
def test_min_shards_above_the_shards_of_a_device_is_an_error(task: Task, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(*["compute = 1"] * 3).local_shards(task)


def test_with_min_shards_0_devices_may_have_no_data() -> None:
    fleet = build(*["compute = 1"] * 3)
    assert fleet.local_shards(federated_task(2, min_shards=0)).tolist() == [1, 1, 0]


def test_devices_have_their_own_samples_and_the_others_share_the_rest() -> None:
    fleet = build("compute = 1\nown_samples = 250", "compute = 1", "compute = 1")
    task = federated_task(10)
    assert fleet.local_samples(task).tolist() == [250, 375, 375]
    assert fleet.local_shards(task).tolist() == [3, 4, 4]
    every = build(*[f"compute = 1\nown_samples = {count}" for count in (10, 20, 400)])
    # Not all samples of the task have to be on a device.
    assert every.local_samples(task).tolist() == [10, 20, 400]


@pytest.mark.parametrize(
    ("own", "task", "message"),
    [
        (600, federated_task(10), "own_samples sum to 1,200, which leaves 0 of 1,000 samples to 1"),
        (450, federated_task(10, min_shards=2), "leaves 100 of 1,000 .* expected at least 101"),
        (50, federated_task(10, min_shards=2), "0 has 1 shards; expected at least min_sh"),
        (50, TASK, 'own_samples of 0 is for mode = "federated" only'),
    ],
)
def test_own_samples_that_do_not_fit_the_task_are_an_error(
    own: int, task: Task, message: str
) -> None:
    fleet = build(*[f"compute = 1\nown_samples = {own}"] * 2, "compute = 1")
    with pytest.raises(SettingError, match=message):
        fleet.local_samples(task)


def test_states_of_cycles_have_their_probabilities_and_are_independent() -> None:
    fleet = build(BUSY, "train_s = 1.0", BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"))
    drawn = np.array([fleet.states_in_cycle(cycle) for cycle in range(8_000)])
    frequency = [np.bincount(each, minlength=3) / 8_000 for each in drawn.T]
    assert frequency[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    assert frequency[1].tolist() == [1, 0, 0]
    assert frequency[2].tolist() == pytest.approx([0, 0.8, 0.2], abs=0.02)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.05
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.05


def test_states_of_a_cycle_depend_on_the_seed() -> None:
    fleet = build(*[BUSY] * 50)
    other = replace(fleet, seed=2)
    assert fleet.states_in_cycle(4).tolist() == fleet.states_in_cycle(4).tolist()
    assert fleet.states_in_cycle(4).tolist() != other.states_in_cycle(4).tolist()


def test_a_live_device_has_the_same_state_as_the_simulated_one() -> None:
    fleet = build(BUSY, "train_s = 1.0", *[BUSY] * 6)
    rows = np.stack(
        [fleet.state_probability, fleet.state_compute, fleet.state_bandwidth], axis=2
    ).tolist()
    emulated = [
        EmulatedDevice(1.0, 1e6, 1e6, 0.0, tuple(OperatingState(*row) for row in each), fleet.seed)
        for each in rows
    ]
    devices = [Device(each, number) for number, each in enumerate(emulated)]
    for cycle in range(30):
        states = fleet.states_in_cycle(cycle)
        for number, device in enumerate(devices):
            device.start_cycle(cycle)
            assert isinstance(device._pace, ComputePacer)
            assert device._pace.share == fleet.state_compute[number, states[number]]


def test_a_padded_state_is_never_drawn_if_probabilities_sum_to_less_than_1() -> None:
    thirds = "{ probability = 0.3333333 }, " * 3
    quarters = "{ probability = 0.25 }, " * 4
    fleet = build(*(f"train_s = 1.0\nstate = [{states}]" for states in (thirds, quarters)))
    assert fleet.draw_states(constant_generator(np.nextafter(1.0, 0.0))).tolist() == [2, 3]


def test_fleets_of_two_seeds_differ_only_if_their_devices_are_drawn() -> None:
    group: dict[str, object] = {"count": 3, "profile": "phone", "price": 2.0}
    prices = {"mean": 5.0, "sd": 1.0}
    clipped = prices | {"low": 9.0, "high": 9.0}

    def are_same(**changes: object) -> bool:
        first, second = (Fleet.from_tables(group=[group | changes], seed=n) for n in (1, 2))
        return first.has_same_devices(second)

    assert are_same()
    assert are_same(price=clipped)
    assert not are_same(price=prices)
    assert not are_same(spread={"compute": 0.1})
    assert not are_same(own_samples={"mean": 500.0, "spread": 0.5})

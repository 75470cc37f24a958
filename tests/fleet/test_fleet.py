import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.emulation import ComputePacer
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetFile
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task, TaskSizes
from melisma.live.learner.device import Device, EmulatedDevice

TASK = Task(
    name="t",
    model="any",
    data="any",
    deadline_s=10.0,
    shard_samples=100,
    sizes=TaskSizes(samples=1000, sample_bytes=50, model_bytes=2000, sample_ops=6e5),
)
FEDERATED = msgspec.structs.replace(TASK, mode="federated")


def fleet(*learners: str) -> Fleet:
    """One learner a text, each with 8 kB/s and 10 ms unless it says something else."""
    link = "bandwidth_bps = 64_000\nlatency_s = 0.01\n"
    tables = [
        f'[[fleet.learner]]\nname = "{number}"\n{"" if "bandwidth_bps" in said else link}{said}\n'
        for number, said in enumerate(learners)
    ]
    return build_fleet(msgspec.convert(tomllib.loads("".join(tables)), FleetFile).fleet)


@pytest.mark.parametrize(
    ("said", "shard_s"),
    [
        ("train_s = 2.5", 2.5),
        ("samples_per_s = 40", 100 / 40),
        ("clock_hz = 1e6\ncycles_per_sample = 2e3", 100 * 2e3 / 1e6),
        # One operation a cycle where nothing is said of cycles.
        ("clock_hz = 1e6", 100 * 6e5 / 1e6),
        ("compute = 0.5", 100 * 6e5 / 0.5e10),
        ('profile = "phone"', 100 * 6e5 / 0.3e10),
    ],
)
def test_a_shard_takes_what_the_speed_says(said: str, shard_s: float) -> None:
    found = fleet(said)
    assert found.train_s(TASK).tolist() == pytest.approx([shard_s])
    assert found.sample_seconds(TASK).tolist() == pytest.approx([shard_s / 100])


def test_learners_said_in_different_ways_stand_side_by_side() -> None:
    found = fleet("train_s = 2.5", "samples_per_s = 40", "clock_hz = 1e6", "compute = 0.5")
    assert found.train_s(TASK).tolist() == pytest.approx([2.5, 2.5, 60.0, 0.012])


def test_data_and_model_travel_at_the_bandwidth() -> None:
    found = fleet("compute = 1", "compute = 1\nbandwidth_bps = 128_000\nlatency_s = 0")
    assert found.ship_s(TASK).tolist() == [100 * 50 / 8000, 100 * 50 / 16000]
    assert found.fixed_s(TASK).tolist() == pytest.approx([2 * (0.25 + 0.01), 2 * 0.125])


def test_federated_learning_ships_no_data() -> None:
    found = fleet("compute = 1", 'profile = "phone"')
    assert found.ship_s(FEDERATED).tolist() == [0.0, 0.0]
    assert found.fixed_s(FEDERATED).tolist() == found.fixed_s(TASK).tolist()
    assert found.state_costs(FEDERATED).quantile(0.9)["ship_s"].tolist() == [0.0, 0.0]


BUSY = """
train_s = 2.0
state = [
    { probability = 0.5 },
    { probability = 0.3, compute = 0.5, bandwidth = 0.8 },
    { probability = 0.2, compute = 0.8, bandwidth = 0.25 },
]
"""


def test_costs_in_a_state_are_those_of_what_it_leaves() -> None:
    found = fleet(BUSY, "train_s = 1.0")
    assert {
        name: each.tolist()
        for name, each in found.state_costs(TASK).in_states(np.array([2, 0])).items()
    } == {
        "train_s": [2.0 / 0.8, 1.0],
        "ship_s": [0.625 / 0.25, 0.625],
        "fixed_s": pytest.approx([0.5 / 0.25 + 0.02, 0.52]),
    }


def test_expected_costs_are_the_mean_over_states() -> None:
    mean = fleet(BUSY, "train_s = 1.0").state_costs(TASK).mean()
    slow, narrow = 0.5 + 0.3 / 0.5 + 0.2 / 0.8, 0.5 + 0.3 / 0.8 + 0.2 / 0.25
    assert mean["train_s"].tolist() == pytest.approx([2.0 * slow, 1.0])
    assert mean["ship_s"].tolist() == pytest.approx([0.625 * narrow, 0.625])
    assert mean["fixed_s"].tolist() == pytest.approx([0.5 * narrow + 0.02, 0.52])


def test_a_narrow_link_takes_no_longer_to_answer() -> None:
    slow = "compute = 1\nbandwidth_bps = 1e30\nlatency_s = 0.5\n"
    found = fleet(slow + "state = [{ probability = 1.0, bandwidth = 0.01 }]")
    assert found.state_costs(TASK).in_states(np.array([0]))["fixed_s"].tolist() == pytest.approx(
        [1.0]
    )
    assert found.state_costs(TASK).mean()["fixed_s"].tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("caution", [0.5, 0.7, 0.8, 0.9, 0.95])
def test_drawn_states_exceed_what_is_planned_no_more_often_than_caution_allows(
    caution: float,
) -> None:
    # Neither state is ordered like the other: one slows training, one the link.
    found = fleet(
        BUSY, BUSY.replace("0.5 }", "0.8 }").replace("0.3,", "0.1,").replace("0.2,", "0.1,")
    )
    rng = np.random.default_rng(6)
    drawn = [found.state_costs(TASK).in_states(found.draw_states(rng)) for _ in range(4_000)]
    planned = found.state_costs(TASK).quantile(caution)
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
    found = fleet(BUSY)

    def seconds(costs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> float:
        return float(
            costs["fixed_s"][0] + shards * (costs["ship_s"][0] + passes * costs["train_s"][0])
        )

    each = [seconds(found.state_costs(TASK).in_states(np.array([state]))) for state in range(3)]
    expected = float(found.state_probability[0] @ each)
    assert seconds(found.state_costs(TASK).mean()) == pytest.approx(expected)


def test_states_are_drawn_as_often_as_they_are_likely() -> None:
    found = fleet(BUSY, "train_s = 1.0", BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"))
    rng = np.random.default_rng(2)
    drawn = np.array([found.draw_states(rng) for _ in range(20_000)])
    often = [np.bincount(each, minlength=3) / 20_000 for each in drawn.T]
    assert often[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.015)
    assert often[1].tolist() == [1, 0, 0]
    assert often[2].tolist() == pytest.approx([0, 0.8, 0.2], abs=0.015)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.03


def drawing(number: float) -> np.random.Generator:
    """A generator that draws one number only."""
    return cast(np.random.Generator, SimpleNamespace(random=lambda size: np.full(size, number)))


def test_a_state_that_never_happens_is_not_drawn_even_at_the_ends() -> None:
    found = fleet(BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"), "train_s = 1.0")
    assert found.draw_states(drawing(0.0)).tolist() == [1, 0]
    assert found.draw_states(drawing(np.nextafter(1.0, 0.0))).tolist() == [2, 0]


@pytest.mark.parametrize("speed", ["train_s", "samples_per_s", "clock_hz", "compute"])
@pytest.mark.parametrize("figure", ["1e-30", "1e30"])
@pytest.mark.parametrize("left", ["1e-30", "1e30"])
def test_costs_stay_finite_at_the_ends_of_what_can_be_said(
    speed: str, figure: str, left: str
) -> None:
    state = f"{{ probability = 0.5, compute = {left}, bandwidth = {left} }}"
    found = fleet(
        f"{speed} = {figure}\nbandwidth_bps = {figure}\nlatency_s = 1e30\n"
        f"state = [{state}, {{ probability = 0.5 }}]"
    )
    for share in (0.001, 0.999):
        for seconds in found.state_costs(TASK).quantile(share).values():
            assert np.all(np.isfinite(seconds) & (seconds >= 0))


def shards(count: int, **changes: object) -> Task:
    sizes = TaskSizes(samples=100 * count, sample_bytes=50, model_bytes=2000, sample_ops=6e5)
    return msgspec.structs.replace(FEDERATED, sizes=sizes, **changes)


@given(learners=st.integers(1, 9), extra=st.integers(0, 40))
def test_federated_data_lies_on_the_devices_in_even_parts(learners: int, extra: int) -> None:
    found, task = fleet(*["compute = 1"] * learners), shards(learners + extra)
    own = found.own_shards(task)
    assert own.dtype == np.int64
    assert own.sum() == task.shards
    assert np.ptp(own) <= 1
    assert own.tolist() == sorted(own, reverse=True)
    assert found.own_shards(TASK).tolist() == [0] * learners


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (shards(2), "task t: 2 shards on 3 devices leave 0 to some; .* shard_samples of 66 would"),
        (shards(7, min_shards=3), "leave 2 to some; expected at least min_shards, 3: .* of 77"),
        (shards(7, min_shards=300), "leave 2 to some; expected at least min_shards, 300$"),
    ],
)
def test_a_least_share_above_what_devices_hold_is_refused(task: Task, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        fleet(*["compute = 1"] * 3).own_shards(task)


def test_devices_without_data_may_be_let_in() -> None:
    found = fleet(*["compute = 1"] * 3)
    assert found.own_shards(shards(2, min_shards=0)).tolist() == [1, 1, 0]


def test_states_of_a_cycle_are_drawn_as_often_as_they_are_likely_and_anew_in_each_cycle() -> None:
    found = fleet(BUSY, "train_s = 1.0", BUSY.replace("0.5 }", "0.0 }").replace("0.3", "0.8"))
    drawn = np.array([found.states_in_cycle(cycle) for cycle in range(8_000)])
    often = [np.bincount(each, minlength=3) / 8_000 for each in drawn.T]
    assert often[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    assert often[1].tolist() == [1, 0, 0]
    assert often[2].tolist() == pytest.approx([0, 0.8, 0.2], abs=0.02)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.05
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.05


def test_states_of_a_cycle_are_those_of_the_seed() -> None:
    found = fleet(*[BUSY] * 50)
    other = replace(found, seed=2)
    assert found.states_in_cycle(4).tolist() == found.states_in_cycle(4).tolist()
    assert found.states_in_cycle(4).tolist() != other.states_in_cycle(4).tolist()


def test_a_live_device_is_in_the_state_of_the_simulated_one() -> None:
    found = fleet(BUSY, "train_s = 1.0", *[BUSY] * 6)
    rows = np.stack(
        [found.state_probability, found.state_compute, found.state_bandwidth], axis=2
    ).tolist()
    emulated = [
        EmulatedDevice(1.0, 1e6, 0.0, tuple((p, c, b) for p, c, b in each), found.seed)
        for each in rows
    ]
    devices = [Device(each, number) for number, each in enumerate(emulated)]
    for cycle in range(30):
        states = found.states_in_cycle(cycle)
        for number, device in enumerate(devices):
            device.start_cycle(cycle)
            assert isinstance(device._pace, ComputePacer)
            assert device._pace.share == found.state_compute[number, states[number]]


def test_a_state_that_never_happens_is_not_drawn_where_probabilities_sum_to_a_little_less() -> None:
    thirds = "{ probability = 0.3333333 }, " * 3
    quarters = "{ probability = 0.25 }, " * 4
    found = fleet(*(f"train_s = 1.0\nstate = [{states}]" for states in (thirds, quarters)))
    assert found.draw_states(drawing(np.nextafter(1.0, 0.0))).tolist() == [2, 3]

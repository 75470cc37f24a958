from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from melisma.allocation.builders import (
    build_cycle_problem,
    build_radio_problem,
    build_shared_problem,
    build_unmeasured_problem,
)
from melisma.allocation.dab import dab
from melisma.allocation.equal import equal
from melisma.allocation.staleness import staleness
from melisma.errors import SettingError
from melisma.fleet.channel import Channel
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.states import StateCosts
from melisma.fleet.task import Task

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(folder: str, *names: str) -> tuple[list[Task], Fleet]:
    tasks = [read_task(EXAMPLES / folder / name) for name in names or ("TASK.toml",)]
    return tasks, read_fleet(EXAMPLES / folder / "FLEET.toml")


def test_costs_of_the_cluster_come_from_its_profiles() -> None:
    (task,), fleet = example("mays-cluster")
    problem = build_cycle_problem(task, fleet.state_costs(task))
    # TwoNN: 40,400 multiplications and 40,480 parameters; shards of 500 times 785 bytes.
    shard_ops, core = 500 * 6 * 40_400, 1e10
    shard_bits, model_bits = 8 * 785 * 500, 32 * 40_480
    link_bps = np.array([25e6, 40e6, 40e6, 300e6])
    latency_s = np.array([0.005, 0.004, 0.004, 0.001])
    np.testing.assert_allclose(
        problem.train_s, shard_ops / (core * np.array([0.1, 0.3, 0.25, 0.6]))
    )
    np.testing.assert_allclose(problem.ship_s, shard_bits / link_bps + latency_s)
    np.testing.assert_allclose(problem.fixed_s, 2 * (model_bits / link_bps + latency_s))
    assert (problem.deadline_s, problem.shards) == (15.0, 120)
    assert problem.min_shards.tolist() == [1] * 4
    assert problem.max_shards.tolist() == [120] * 4
    # pi-1: (15 - 0.1136) / (0.1306 + 5 * 0.1212) = 20.2.
    assert dab(problem, 5).shards.tolist() == [20, 52, 45, 120]


def test_twenty_nodes_have_staleness_four_with_equal_shares_and_zero_at_best() -> None:
    (task,), fleet = example("twenty-nodes")
    problem = build_cycle_problem(task, fleet.state_costs(task))
    assert problem.train_s[[0, 10]].tolist() == pytest.approx([1_123_736 / 2.4e9, 1_123_736 / 7e8])
    rate_bps = float(Channel(5e6, 23, path_loss="attenuation").rate_bps(50.0))
    assert set(problem.ship_s) == {8 * 784 / rate_bps}
    assert set(problem.fixed_s) == {2 * 8 * 1_121_760 / rate_bps}
    shares = equal(problem)
    assert set(shares.shards) == {3000}
    assert shares.max_staleness == 4
    # Half of the pairs, 100 of 190, are four apart.
    assert shares.average_staleness == pytest.approx(400 / 190)
    assert shares.average_staleness == pytest.approx(2.11, abs=0.005)
    assert staleness(problem).max_staleness == 0


def test_more_caution_raises_uncertain_costs() -> None:
    (_, task, _), fleet = example("med", "fashion.toml", "mnist-cn.toml", "mnist-ff.toml")
    bold, usual = (
        build_cycle_problem(replace(task, caution=each), fleet.state_costs(task))
        for each in (0.5, 0.9)
    )
    for name in ("train_s", "ship_s", "fixed_s"):
        assert np.all(getattr(usual, name) >= getattr(bold, name))
        assert np.any(getattr(usual, name) > getattr(bold, name))
    (certain,), cluster = example("mays-cluster")
    careful = build_cycle_problem(replace(certain, caution=0.99), cluster.state_costs(certain))
    assert careful.train_s.tolist() == cluster.train_s(certain).tolist()


def test_bounds_come_from_the_task() -> None:
    (task,), fleet = example("mays-cluster")
    bounded = replace(task, min_shards=3, max_shards=50)
    problem = build_cycle_problem(bounded, fleet.state_costs(task), held=[0, 1, 2, 3])
    assert problem.min_shards.tolist() == [3] * 4
    assert problem.max_shards.tolist() == [50] * 4
    assert problem.held.tolist() == [0, 1, 2, 3]


def test_estimates_that_learners_reported_are_enough() -> None:
    (task,), _ = example("mays-cluster")
    reported = Estimates(
        train_s=Estimate.from_benchmark([0.1, 0.2]),
        ship_s=Estimate.from_benchmark([0.05, 0.04]),
        fixed_s=Estimate.from_benchmark([0.3, 0.1]),
    )
    problem = build_cycle_problem(task, reported)
    factor = problem.train_s / reported.train_s.mean
    assert np.all((factor > 1.1) & (factor < 1.35))
    for name, mean in reported.mean().items():
        assert getattr(problem, name).tolist() == pytest.approx((factor * mean).tolist())


@pytest.mark.parametrize("blind", [False, True])
def test_local_shards_are_held_and_bound_each_share(blind: bool) -> None:
    (task,), fleet = example("mays-cluster")
    own = [40, 0, 50, 30]
    problem = (
        build_unmeasured_problem(task, 4, local_shards=own)
        if blind
        else build_cycle_problem(task, fleet.state_costs(task), local_shards=own)
    )
    assert problem.held.tolist() == problem.max_shards.tolist() == own
    assert problem.min_shards.tolist() == [1, 0, 1, 1]
    assert equal(problem, passes=1).shards.tolist() == own
    assert problem.has_costs is not blind


def test_a_number_of_learners_is_enough_for_equal_shares() -> None:
    (task,), _ = example("mays-cluster")
    problem = build_unmeasured_problem(task, 7, held=2)
    assert equal(problem, passes=1).shards.tolist() == [18] + [17] * 6


MED = ("fashion.toml", "mnist-cn.toml", "mnist-ff.toml")


def test_several_tasks_take_expected_costs() -> None:
    tasks, fleet = example("med", *MED)
    costs = [fleet.state_costs(task).mean() for task in tasks]
    problem = build_shared_problem(tasks, costs, fleet.price, fleet.budget)
    # One state has e^2 / (e^2 + 2) of the time, the others 1 / (e^2 + 2) each.
    likely, other = np.exp(2) / (np.exp(2) + 2), 1 / (np.exp(2) + 2)
    assert (likely, other) == pytest.approx((0.787, 0.107), abs=1e-3)
    first = int(fleet.state_probability[0].argmax())
    chances = np.where(np.arange(3) == first, likely, other)
    slow = chances @ (1 / np.array([1.0, 0.4, 0.9]))
    narrow = chances @ (1 / np.array([1.0, 0.9, 0.3]))
    # Multiplications and parameters by hand, in the order fashion, mnist-cn, mnist-ff.
    multiplications = [
        9 * 16 * 28**2 + 16 * 32 * 9 * 14**2 + 1568 * 1000 + 1000 * 500 + 5000,
        9 * 6 * 26**2 + 6 * 16 * 9 * 11**2 + 400 * 200 + 200 * 100 + 1000,
        784 * 500 + 500 * 300 + 300 * 100 + 1000,
    ]
    parameters = [
        160 + 4640 + 1_569_000 + 500_500 + 5010,
        60 + 880 + 80_200 + 20_100 + 1010,
        392_500 + 150_300 + 30_100 + 1010,
    ]
    passes = np.array([1, 1, 2])
    train_s = 500 * 6 * np.array(multiplications) / 0.6e10
    # A busy link is narrower, not longer.
    ship_s = 8 * 785 * 500 / 300e6 * narrow + 0.001
    fixed_s = 2 * (32 * np.array(parameters) / 300e6 * narrow + 0.001)
    np.testing.assert_allclose(problem.fixed_s[:, 0], fixed_s)
    np.testing.assert_allclose(problem.shard_s[:, 0], ship_s + passes * train_s * slow)
    assert problem.shards.tolist() == [20, 60, 60]
    assert problem.deadline_s.tolist() == [40, 40, 55]
    assert problem.budget == 300
    assert problem.price.tolist() == fleet.price.tolist()


def test_several_tasks_can_take_the_costs_of_one_state_each() -> None:
    tasks, fleet = example("med", *MED)
    states = fleet.draw_states(generator(1, "test"))
    known = [fleet.state_costs(task).in_states(states) for task in tasks]
    problem = build_shared_problem(tasks, known, fleet.price)
    for row, (task, costs) in enumerate(zip(tasks, known, strict=True)):
        assert task.passes is not None
        np.testing.assert_array_equal(problem.fixed_s[row], costs["fixed_s"])
        np.testing.assert_array_equal(
            problem.shard_s[row], costs["ship_s"] + task.passes * costs["train_s"]
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"passes": None}, "task mnist-cn has no passes; several tasks at once need passes"),
        (
            {"max_shards": 30},
            "task mnist-cn has max_shards; several tasks at once do not support it",
        ),
        (
            {"mode": "federated"},
            "task mnist-cn is federated; several tasks at once need parallelized tasks",
        ),
    ],
)
def test_unsupported_settings_of_several_tasks_are_named(
    changes: dict[str, Any], said: str
) -> None:
    (one, other), fleet = example("med", "fashion.toml", "mnist-cn.toml")
    costs = [fleet.state_costs(task).mean() for task in (one, other)]
    with pytest.raises(SettingError, match=said):
        build_shared_problem([one, replace(other, **changes)], costs, fleet.price)


def test_data_on_absent_devices_is_left_out() -> None:
    (task,), fleet = example("mays-cluster")
    federated = replace(task, mode="federated", deadline_s=1e3)
    own = fleet.local_shards(federated)
    estimates = fleet.state_costs(federated)
    some = StateCosts(*(getattr(estimates, field.name)[1:] for field in fields(estimates)))
    problem = build_cycle_problem(federated, some, local_shards=own[1:])
    assert problem.shards == own[1:].sum() < task.shards
    assert equal(problem, 1).shards.tolist() == own[1:].tolist()
    with pytest.raises(SettingError, match="held and local_shards are exclusive"):
        build_cycle_problem(federated, some, held=1, local_shards=own[1:])


def test_a_radio_problem_has_the_settings_of_the_paper() -> None:
    (task,), fleet = example("lte-cell")
    problem = build_radio_problem(task, fleet)
    clock_hz = np.repeat([0.7e9, 1.4e9, 2.1e9], 4)
    np.testing.assert_allclose(problem.slope_s, 1e8 / clock_hz)
    np.testing.assert_allclose(problem.apply_s, 7e6 / clock_hz)
    assert problem.gradient_bits == 6_964_106
    assert problem.frame_s == 0.01
    assert set(problem.min_batch) == {1}
    assert set(problem.max_batch) == {128}
    assert not problem.base_s.any()
    assert not problem.threshold.any()
    edge_bps = float(Channel(10e6, 28).mean_rate_bps(200.0))
    assert np.all(problem.uplink_bps >= edge_bps)
    assert problem.uplink_bps.tolist() == problem.downlink_bps.tolist()
    assert len(set(problem.uplink_bps)) == 12


def test_a_gradient_has_32_bits_per_parameter_by_default() -> None:
    (task,), fleet = example("mays-cluster")
    problem = build_radio_problem(task, fleet)
    assert problem.gradient_bits == 32 * 40_480
    assert problem.apply_s.tolist() == [0.0] * 4
    assert problem.slope_s[0] == pytest.approx(6 * 40_400 / 1e9)


def test_cycles_of_an_update_need_a_clock(tmp_path: Path) -> None:
    (task,), _ = example("lte-cell")
    path = tmp_path / "FLEET.toml"
    path.write_text("[[fleet.group]]\ncount = 2\ntrain_s = 1\nbandwidth_bps = 1e6")
    with pytest.raises(
        SettingError, match=r"has neither clock_hz nor compute, which radio.update_cycles needs"
    ):
        build_radio_problem(task, read_fleet(path))

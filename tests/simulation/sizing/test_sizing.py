"""Answers beside brute force over all candidates, on small fleets."""

from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import melisma
from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import build_fleet, read_fleet, read_fleet_table
from melisma.fleet.sizes import dense
from melisma.fleet.task import OptimizerSettings, SimulationSettings, Task, TaskSizes
from melisma.simulation.forecast import take_learners
from melisma.simulation.simulation import SimulationOptions, simulate
from melisma.simulation.sizing import candidates
from melisma.simulation.sizing.candidates import ask, cheapest_first, scale_model, with_count
from melisma.simulation.sizing.size_goal import SizeGoal
from melisma.simulation.sizing.sizing import Sizing, size
from melisma.simulation.sizing.sizing_picture import answer_line
from melisma.testing import make_task

FLEET = """
[[fleet.learner]]
name = "pi"
train_s = 0.5
bandwidth_bps = 2e7
price = 1.0

[[fleet.group]]
name = "phone"
count = 3
train_s = 0.3
bandwidth_bps = 1e7
price = 2.0
spread = { compute = 0.3 }
"""
WITHIN_S = 60.0


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return path


def task(**settings: Any) -> Task:
    rules = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
    return make_task(**(rules | {"scheme": "dab", "passes": 1} | settings))


def visits(task: Task, fleet: Any, **options: Any) -> float:
    """Return the samples trained within the time, by a plain simulation."""
    report = simulate(
        SizeGoal(WITHIN_S, visits=1.0).fill_time(task),
        fleet,
        SimulationOptions(work="timing", **({"seed": 1} | options)),
    )
    ends_s = report.began_s + WITHIN_S
    return sum(cycle.visits_counted for cycle in report.cycles if cycle.closed_s <= ends_s)


def size_once(
    task: Task, fleet: Path, find: Any, within_s: float = WITHIN_S, **goal: Any
) -> Sizing:
    """Return the answer on one seed, that of `visits`."""
    return size(task, fleet, find, within_s=within_s, seeds=1, **goal)


def test_the_fewest_devices_are_those_of_brute_force(fleet: Path) -> None:
    table = read_fleet_table(fleet)
    by_count = [
        visits(task(), build_fleet(with_count(table, "phone", count))) for count in range(13)
    ]
    for goal in (0.5 * by_count[0], by_count[3], by_count[5] + 1, by_count[11]):
        brute = next(count for count, reached in enumerate(by_count) if reached >= goal)
        found = size_once(task(), fleet, "devices", visits=goal, kind="phone")
        assert found.answer == brute
        assert found.monotone
        assert found.chosen is not None
        assert found.chosen.reached == by_count[brute]
        tried = {candidate.value: candidate.holds for candidate in found.candidates}
        assert brute == 0 or tried[brute - 1] is False
        assert tried[brute + 1] is True


def test_the_least_deadline_holds_and_the_next_shorter_one_fails(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MAX_CYCLES", 20)
    goal = 0.9 * visits(task(deadline_s=8.0), fleet)
    found = size_once(task(), fleet, "deadline", visits=goal)
    assert found.answer is not None
    shorter = max(c.value for c in found.candidates if c.value < found.answer)
    assert found.answer / shorter == pytest.approx(1.05, rel=0.02)
    assert visits(task(deadline_s=found.answer), fleet) >= goal
    assert visits(task(deadline_s=shorter), fleet) < goal


def test_the_largest_model_holds_and_the_next_larger_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[fleet.learner]]\nname = "pi"\nprofile = "raspberry-pi-4"\n')
    goal = 0.25 * visits(task(), path)
    found = size(task(), path, "model", within_s=WITHIN_S, visits=goal)
    assert found.answer is not None
    larger = min(c.value for c in found.candidates if c.value > found.answer)
    assert visits(scale_model(task(), found.answer), path) >= goal
    assert visits(scale_model(task(), larger), path) < goal
    assert 2.0 < found.answer < 6.0


def test_the_smallest_budget_is_the_cost_of_the_cheapest_devices_that_suffice(fleet: Path) -> None:
    everyone = read_fleet(fleet, seed=1)
    order = cheapest_first(everyone, task())
    assert everyone.price[order].tolist() == [1.0, 2.0, 2.0, 2.0]
    reached = [
        visits(task(), take_learners(everyone, np.sort(order[:count]))) for count in range(1, 5)
    ]
    goal = (reached[1] + reached[2]) / 2
    found = size_once(task(), fleet, "budget", visits=goal)
    assert found.chosen is not None
    assert found.chosen.value == 3
    assert found.answer == found.chosen.cost > 0
    # Until the goal is reached, not until the end of the time.
    less = size_once(task(), fleet, "budget", within_s=2 * WITHIN_S, visits=goal / 4)
    assert less.answer is not None
    assert less.answer < found.answer


def test_the_cheapest_devices_are_those_of_each_seed_if_prices_are_drawn(fleet: Path) -> None:
    drawn = FLEET.replace("price = 2.0", "price = { mean = 5.0, sd = 2.0 }").replace("= 3", "= 9")
    fleet.write_text(drawn)
    question = ask("budget", task(), fleet, SizeGoal(WITHIN_S, visits=1.0), None, 1)
    orders = set()
    for seed in range(1, 6):
        everyone = read_fleet(fleet, seed=seed)
        orders.add(tuple(np.argsort(everyone.price)))
        for count in (1, 4, 10):
            prices = question.fleet_for(count, seed).price
            assert sorted(prices) == sorted(everyone.price)[:count]
    assert len(orders) == 5


def test_the_first_of_the_cheapest_devices_is_present_at_the_start(fleet: Path) -> None:
    absent = 'name = "shed"\nprice = 0.1\navailability = { joins_s = 20.0 }\n'
    speed = "train_s = 0.3\nbandwidth_bps = 1e7\n"
    sheds = [absent.replace("shed", f"shed-{n}") + speed for n in (1, 2)]
    fleet.write_text(FLEET + "".join(f"[[fleet.learner]]\n{shed}" for shed in sheds))
    question = ask("budget", task(), fleet, SizeGoal(WITHIN_S, visits=1.0), None, 1)
    assert question.fleet_for(1, 1).names == ("pi",)
    assert question.fleet_for(3, 1).names == ("pi", "shed-1", "shed-2")
    found = size(task(), fleet, "budget", within_s=WITHIN_S, visits=1000)
    assert found.chosen is not None
    assert not any(candidate.problem for candidate in found.candidates)


def test_time_to_an_accuracy_is_that_of_simulated_training(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[[fleet.learner]]\nname = "pi"\ntrain_s = 1\nbandwidth_bps = 1e7\n'
        '[[fleet.learner]]\nname = "jetson"\ntrain_s = 0.1\nbandwidth_bps = 1e7\n'
    )
    trained = task(
        model="tests.live.tiny_task:Linear",
        data="tests.live.tiny_task:blobs",
        sizes=TaskSizes(),
        shard_samples=50,
        deadline_s=5.0,
        optimizer=OptimizerSettings(lr=0.05),
        simulation=SimulationSettings(work="train"),
    )
    table = read_fleet_table(path)
    goal = SizeGoal(200.0, accuracy=0.95)
    by_count = [
        simulate(
            goal.fill_time(trained),
            build_fleet(with_count(table, "jetson", n)),
            SimulationOptions(),
        ).seconds_to(0.95)
        for n in range(4)
    ]
    within_s = (by_count[0] + by_count[1]) / 2
    assert by_count[1] < within_s < by_count[0]
    brute = next(n for n, seconds in enumerate(by_count) if seconds <= within_s)
    found = size(
        trained, path, "devices", within_s=within_s, accuracy=0.95, kind="jetson", seeds=1, most=4
    )
    assert found.answer == brute
    assert found.level == "train"
    assert found.chosen is not None
    assert found.chosen.reached == pytest.approx(by_count[brute])


def test_all_candidates_have_the_same_seeds_and_answers_repeat(fleet: Path) -> None:
    noisy = FLEET.replace("spread", "noise = { compute = 0.2 }\nspread")
    fleet.write_text(noisy)
    goal = 2 * visits(task(), fleet)

    def find() -> Sizing:
        return size(task(), fleet, "devices", within_s=WITHIN_S, visits=goal, kind="phone", seeds=2)

    assert find().as_dict() == find().as_dict()
    assert find().seeds == (1, 2)
    assert find().chosen is not None


@pytest.mark.parametrize(
    ("before", "after", "seeds"),
    [
        ("spread = { compute = 0.3 }", "", (1,)),
        ("spread = { compute = 0.3 }", "price = { mean = 5.0, sd = 2.0 }", (1, 2, 3)),
        ("", "", (1, 2, 3)),
    ],
)
def test_several_seeds_are_simulated_if_a_fleet_file_draws_its_devices(
    fleet: Path, before: str, after: str, seeds: tuple[int, ...]
) -> None:
    lines = FLEET.replace("price = 2.0\n", "") if "price" in after else FLEET
    fleet.write_text(lines.replace(before, after) if before else lines)
    found = size(task(), fleet, "budget", within_s=WITHIN_S, visits=1000)
    assert found.seeds == seeds
    # The devices of a fleet that was made already do not depend on the seed.
    made = size(task(), read_fleet(fleet), "budget", within_s=WITHIN_S, visits=1000)
    assert made.seeds == (1,)


def test_the_fewest_devices_suffice_on_each_seed_if_they_are_drawn(fleet: Path) -> None:
    table = read_fleet_table(fleet)

    def reached(count: int) -> list[float]:
        drawn = with_count(table, "phone", count)
        return [
            visits(task(), build_fleet(msgspec.structs.replace(drawn, seed=n)), seed=n)
            for n in (2, 3, 4)
        ]

    by_count = [reached(count) for count in range(8)]
    # Enough on the first seed, too few on another one.
    few = next(n for n, (first, *others) in enumerate(by_count) if min(others) < first)
    goal = (by_count[few][0] + min(by_count[few])) / 2
    found = size(task(seed=2), fleet, "devices", within_s=WITHIN_S, visits=goal, kind="phone")
    assert found.answer == next(n for n, each in enumerate(by_count) if min(each) >= goal) > few
    assert found.chosen is not None
    assert found.chosen.reached == min(by_count[int(found.chosen.value)])


def test_a_goal_out_of_reach_has_no_answer_and_says_why(fleet: Path) -> None:
    found = melisma.size(
        *(task(), fleet, "devices"), within_s=WITHIN_S, visits=1e12, kind="phone", most=4
    )
    assert (found.answer, found.chosen) == (None, None)
    assert [candidate.value for candidate in found.candidates] == [0, 1, 3, 4]
    assert "no candidate reaches it" in found.plot().svg


def test_hidden_layers_of_an_mlp_become_wider() -> None:
    stated = TaskSizes(samples=6000, sample_bytes=785, model_bytes=163_880, sample_ops=243_600.0)
    mlp = task(model="mlp", model_args={"layers": [784, 50, 20, 10]}, sizes=stated)
    assert scale_model(mlp, 2.5).model_args == {"layers": [784, 125, 50, 10]}
    assert scale_model(mlp, 2.5).model_bytes == 4 * dense(784, 125, 50, 10).parameters
    assert scale_model(mlp, 2.5).sample_ops == 6 * dense(784, 125, 50, 10).multiplications
    small = scale_model(task(), 0.5)
    assert small.model_bytes == pytest.approx(task().model_bytes / 2, abs=1)
    assert small.sample_ops == task().sample_ops / 2


@pytest.mark.parametrize("find", ["deadline", "devices", "budget", "model"])
def test_what_is_no_fleet_is_refused(find: Any) -> None:
    with pytest.raises(SettingError, match=r"fleet is 3 \(int\); expected a melisma.Fleet"):
        size(task(), cast("Any", 3), find, within_s=WITHIN_S, visits=1000)


def test_what_is_no_task_is_refused(fleet: Path) -> None:
    with pytest.raises(SettingError, match=r"task is 3 \(int\); expected a melisma.Task"):
        size(cast("Any", 3), fleet, "deadline", within_s=WITHIN_S, visits=1000)


def test_the_limit_of_the_search_is_not_presented_as_the_least_deadline(fleet: Path) -> None:
    found = size(task(), fleet, "deadline", within_s=600.0, visits=10.0)
    assert found.answer == 3.0
    assert found.as_dict()["at_limit"] is True
    line = answer_line(found)
    assert line.endswith("already the shortest tried, 3 s, reaches the goal")
    largest = size(task(deadline_s=3000.0), fleet, "model", within_s=6000.0, visits=10.0)
    assert largest.answer == 1000.0
    assert answer_line(largest).endswith("already the largest tried, 1000 times, reaches the goal")
    fewest = size(task(), fleet, "devices", within_s=600.0, visits=10.0, kind="phone")
    assert (fewest.answer, fewest.at_limit) == (0.0, False)
    assert answer_line(fewest).endswith(": 0 phone")


def test_the_model_to_start_from_is_found_beside_the_task_file(
    tmp_path: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = task(
        model="tests.live.tiny_task:Linear",
        data="tests.live.tiny_task:blobs",
        sizes=TaskSizes(),
        shard_samples=50,
        passes=1,
    )
    report = simulate(trained, fleet, SimulationOptions(), folder=tmp_path / "run")
    assert report.model is not None
    file = tmp_path / "task.toml"
    file.write_text(
        '[task]\nname = "blobs"\nmodel = "tests.live.tiny_task:Linear"\ndeadline_s = 10\n'
        "passes = 1\n"
        'data = "tests.live.tiny_task:blobs"\nshard_samples = 50\nstart = "run/model.safetensors"\n'
    )
    monkeypatch.chdir(tmp_path.parent)
    goal: dict[str, Any] = {"within_s": 60.0, "accuracy": 0.1, "seeds": 1}
    assert size(file, fleet, "deadline", **goal).chosen is not None
    assert size(file.relative_to(tmp_path.parent), fleet, "deadline", **goal).chosen is not None


def test_the_picture_has_a_mark_for_each_candidate_and_the_answer(fleet: Path) -> None:
    found = size(task(), fleet, "devices", within_s=WITHIN_S, visits=1000, kind="phone")
    svg = found.plot().svg
    assert svg.count('width="7.00"') == len(found.candidates)
    assert "1,000 samples trained within 60 s" in svg
    assert msgspec.json.encode(found.as_dict())


@pytest.mark.parametrize(
    ("find", "settings", "problem"),
    [
        ("devices", {}, "kind is missing; the fleet has pi, phone"),
        ("devices", {"kind": "phoen"}, "did you mean phone?"),
        ("deadline", {"kind": "phone"}, "kind = phone is for find = devices"),
        ("devises", {}, "did you mean devices?"),
        ("model", {"visits": None, "accuracy": 0.9}, "cannot be trained in other sizes"),
        ("deadline", {"accuracy": 0.9}, "visits or accuracy; give one of them"),
        ("deadline", {"visits": -1.0}, "visits is -1"),
        ("deadline", {"visits": None, "accuracy": 1.5}, "accuracy is 1.5"),
        ("deadline", {"within_s": 0.0}, "within_s is 0"),
        ("deadline", {"seeds": 0}, "seeds is 0; expected at least 1"),
        ("devices", {"kind": "phone", "most": -1}, "most is -1; expected at least 1"),
        ("deadline", {"seeds": "a"}, "size: seeds: 'a'; expected a whole number"),
        ("deadline", {"within_s": None}, "size: within_s: None; expected a number"),
        ("deadline", {"within_s": "1h"}, "size: within_s: '1h'; expected a number"),
        ("deadline", {"visits": "many"}, "size: visits: 'many'; expected a number"),
        ("devices", {"kind": 3}, "size: kind: 3; expected text"),
        ("deadline", {"work": "timings"}, "size: work: 'timings'; did you mean timing"),
        ("deadline", {"watch": 3}, r"watch is 3 \(int\); expected a function"),
        ("deadline", {"visits": None, "accuracy": 0.5, "work": "timing"}, "trains nothing"),
    ],
)
def test_wrong_questions_are_refused(
    fleet: Path, find: Any, settings: dict[str, Any], problem: str
) -> None:
    given = {"within_s": WITHIN_S, "visits": 1000.0} | settings
    with pytest.raises(SettingError, match=problem):
        size(task(), fleet, find, **given)

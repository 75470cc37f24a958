"""A learner with a valid credential that sends what no learner should send."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands
from melisma.errors import (
    MalformedError,
    RefusedError,
    SupersededError,
    TooLargeError,
)
from melisma.live import protocol
from melisma.live.plausible import MAX_LOCAL_SHARDS
from melisma.runs.report import Report
from tests.live.attacks.attacked_fleet import (
    FEDERATED,
    GOOD_UPDATE,
    PLAUSIBLE_COSTS,
    attacked_fleet,
    reasons,
    total,
)

WEIGHT, BIAS = GOOD_UPDATE["weight"], GOOD_UPDATE["bias"]
BAD_UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "not a number": ({"weight": WEIGHT * np.nan, "bias": BIAS}, "finite"),
    "infinite": ({"weight": WEIGHT * np.inf, "bias": BIAS}, "finite"),
    "another shape": ({"weight": WEIGHT[:2], "bias": BIAS}, "float32[2]"),
    "another type": ({"weight": WEIGHT.astype(np.float64), "bias": BIAS}, "float64"),
    "text": ({"weight": np.array(["\x1b[2J"] * 4), "bias": BIAS}, ""),
    "a missing field": ({"weight": WEIGHT}, "bias"),
    "another field": ({"weight": WEIGHT, "bias": BIAS, "\x1b[31mx": BIAS}, "x"),
}


FAILING_TRAIN_S = 0.0123
FAILING_SOLVER = f"""
from melisma.cycle import planning

plan = planning._plan

def fail(state, task, learners, **options):
    if (state.learners.costs[0, 0, learners] == {FAILING_TRAIN_S}).any():
        raise ZeroDivisionError("float division by zero")
    return plan(state, task, learners, **options)

planning._plan = fail
"""


def check_honest_learners(report: Report, names: tuple[str, ...] = ("a", "b")) -> None:
    """Assert that the honest learners did not notice an attack."""
    totals = {item.name: item for item in report.learners}
    for name in names:
        assert totals[name].left == totals[name].refused == totals[name].dropped == 0, name
        assert totals[name].cycles == len(report.ended_cycles)
    assert report.outcome == "finished"
    assert report.accuracy > 0.9
    assert "\x1b" not in reasons(report)


def test_updates_that_do_not_fit_are_refused_and_the_others_train_on(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=3, cycles=len(BAD_UPDATES) + 1, deadline_s=1.0) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        mallory = fleet.hostile()
        mallory.join()
        for name, (update, problem) in BAD_UPDATES.items():
            answer = mallory.upload(mallory.await_work(), update)
            assert "the update of mallory is refused" in answer, name
            assert problem in answer
            assert "\x1b" not in answer
        mallory.upload(mallory.await_work())
        report = fleet.finish()
    check_honest_learners(report)
    assert total(report, "mallory").refused == len(BAD_UPDATES)


def test_huge_stale_repeated_and_exaggerated_updates_do_no_harm(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=3, cycles=6) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        mallory = fleet.hostile()
        mallory.join()
        first = mallory.await_work()
        huge = {name: np.full_like(array, 1e30) for name, array in GOOD_UPDATE.items()}
        assert mallory.upload(first, huge) == ""
        second = mallory.await_work()
        mallory.upload(first, huge)  # Stale.
        with pytest.raises(MalformedError):
            mallory.upload(second, visits=10**20)
        assert mallory.upload(second, visits=10**9, planned_visits=10**9, shipped=10**9) == ""
        mallory.upload(second, huge)  # Twice.
        third = mallory.await_work()
        for cycle, attempt in ((0, 0), (3, 99), (99, 1), (2**53, 2**53)):
            mallory.upload(third, huge, cycle=cycle, attempt=attempt)
        for costs in (1e-300, 1e300, float("nan"), -1.0):
            with pytest.raises((RefusedError, MalformedError)):
                mallory.call("report_costs", ((costs, 0.0, 1.0),) * 3)
            with pytest.raises((RefusedError, MalformedError)):
                mallory.upload(third, costs=((costs, 0.0, 1.0),) * 3)
        for phases in (1e300, float("nan"), float("inf")):
            with pytest.raises((RefusedError, MalformedError)):
                mallory.upload(third, phases=(phases,) * 6)
        mallory.upload(third, loss=float("nan"))
        mallory.upload(mallory.await_work(), loss=1e300)
        report = fleet.finish()
    check_honest_learners(report)
    assert report.left_out == {"mallory": 1}
    assert total(report, "mallory").counted_visits <= 10_000


def test_a_learner_that_claims_a_billion_samples_has_a_bounded_part(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=3, cycles=4, **FEDERATED) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        mallory = fleet.hostile()
        for claimed, problem in (
            ((10**9,), "exceeds shard_samples = 50; split it"),
            ((2**53,), "exceeds shard_samples = 50; split it"),
            ((50,) * (MAX_LOCAL_SHARDS + 1), f"use at most {MAX_LOCAL_SHARDS}"),
            ((), "has no local data"),
            ((0,) * 10, "have no samples"),
        ):
            with pytest.raises(RefusedError, match=problem):
                mallory.join(claimed)
        with pytest.raises(TooLargeError):
            mallory.join((50,) * (2 << 20))
        # As many as may be declared.
        mallory.join((50,) * MAX_LOCAL_SHARDS)
        work = mallory.await_work()
        huge = {name: np.full_like(array, 1e30) for name, array in GOOD_UPDATE.items()}
        assert mallory.upload(work, huge, visits=10**9, planned_visits=10**9) == ""
        for cycle in (2, 3):
            work = mallory.await_work()
            assert work.cycle == cycle
            mallory.upload(work, visits=10**9, planned_visits=10**9)
        mallory.upload(mallory.await_work(), visits=10**9, planned_visits=10**9)
        report = fleet.finish()
    check_honest_learners(report)
    assert report.left_out == {"mallory": 1}
    honest = [total(report, name).counted_visits for name in ("a", "b")]
    assert min(honest) > 0
    for step in report.trace:
        for command in step.commands:
            if isinstance(command, commands.Aggregate):
                assert command.weights.max() <= 10 * np.sort(command.weights)[1]


def test_a_forged_evaluation_does_not_decide_the_score(tmp_path: Path) -> None:
    """Mallory reports that all of a billion labels are wrong, with a huge or a small loss."""
    forged = (
        {"samples": 10**9, "labels": 10**9, "correct": 0, "loss_sum": 1e109},
        {"samples": 2**53, "labels": 2**53, "correct": 0, "loss_sum": -1e115},
        {"samples": 1, "labels": 10**9, "correct": 0, "loss_sum": 1e100},
        {"samples": 10**9, "labels": 10**9, "correct": 0, "loss_sum": 0.0, "finite": False},
        {"samples": 0, "labels": 0, "correct": 0, "loss_sum": 0.0},
    )
    cycles = len(forged)
    with attacked_fleet(tmp_path, learners=4, cycles=cycles, deadline_s=4.0, **FEDERATED) as fleet:
        for name in "abc":
            fleet.start_learner(name)
        mallory = fleet.hostile()
        mallory.join((50,) * 6)
        for sums in forged:
            work = mallory.await_work(answer_evaluations=False)
            for cycle in (work.cycle - 1, work.cycle, work.cycle + 1):
                # Not asked for, and not counted.
                mallory.evaluate(cycle, **sums)
            mallory.upload(work)
            instruction = mallory.await_instruction(protocol.EvaluateModel)
            for _ in range(3):
                mallory.evaluate(instruction.cycle, **sums)
            with pytest.raises(RefusedError, match="use at most"):
                mallory.evaluate(instruction.cycle, samples=1, labels=1, correct=0, loss_sum=1e300)
        report = fleet.finish()
    totals = {item.name: item for item in report.learners}
    assert report.outcome == "finished"
    assert all(totals[name].counted_visits > 0 for name in "abc")
    honest_parts = (3 / 4, 3 / 4, 3 / 4, 1.0, 1.0)
    for ended, part in zip(report.ended_cycles, honest_parts, strict=True):
        assert ended.accuracy is not None
        assert ended.accuracy > 0.9 * part
        assert ended.loss is not None
        assert abs(ended.loss) < 10.0


def test_a_learner_with_whose_costs_no_plan_can_be_computed_is_dismissed(tmp_path: Path) -> None:
    """No costs that are accepted are known to do this: the solver is made to fail by some."""
    with attacked_fleet(
        tmp_path, learners=3, cycles=3, scheme="proportional", code=FAILING_SOLVER
    ) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        mallory = fleet.hostile()
        for discloses in ("nothing", "bounds"):
            with pytest.raises(RefusedError, match="use --discloses costs on the device"):
                mallory.join(discloses=discloses)
        mallory.join()
        mallory.await_instruction(protocol.RunBenchmark)
        mallory.call("report_costs", ((FAILING_TRAIN_S, 0.0, 1.0), *PLAUSIBLE_COSTS[1:]))
        mallory.await_instruction(protocol.Leave)
        # Further calls of the session are answered, and change nothing.
        mallory.call("report_costs", PLAUSIBLE_COSTS)
        report = fleet.finish()
        output = fleet.orchestrator.text
    check_honest_learners(report)
    dismissed = total(report, "mallory")
    assert (dismissed.cycles, dismissed.counted_visits) == (0, 0)
    assert reasons(report) == (
        "mallory: no plan can be computed with the costs or bounds that it reported"
    )
    assert reasons(report) in output


def test_no_message_speaks_for_another_learner(tmp_path: Path) -> None:
    header = protocol.to_builtins(protocol.UpdateHeader(1, 1, 300, 300, 0, 0.5, (0.0,) * 6))
    forged_calls: list[tuple[Any, ...]] = [
        ("report_failure", "victim: I cannot continue"),
        ("report_bound", 1, 2.0, 10**6),
        (
            "report_evaluation",
            {"cycle": 1, "samples": 9, "loss_sum": 0.0, "correct": 9, "labels": 9},
        ),
        ("poll", None),
        ("release_shards", 1, [0, 1]),
        ("upload_update", header, GOOD_UPDATE),
    ]
    with attacked_fleet(tmp_path, learners=4, cycles=3) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        victim, mallory = fleet.hostile("victim"), fleet.hostile("mallory")
        victim.join()
        number = mallory.register().learner
        mallory.join()
        session, mallory.session = mallory.session, victim.session
        for method, *args in forged_calls:
            with pytest.raises(SupersededError, match="identity of mallory"):
                mallory.call(method, *args)
        # The id of another learner's session does not lead into that session.
        names = {"learner": 2, "name": "victim", "caller": "victim"}
        registration = protocol.to_builtins(protocol.RegisterRequest(victim.session))
        assert mallory.remote.register(registration | names)["learner"] == number
        with pytest.raises(RefusedError, match="mallory has not joined"):
            mallory.call("upload_update", header | names, GOOD_UPDATE)
        mallory.session = session
        mallory.join()
        victim.upload(victim.await_work())
        mallory.call("report_failure", "victim: \x1b]0;gone\x07\u202eb: left\na: left")
        for _ in range(2):
            victim.upload(victim.await_work())
        report = fleet.finish()
        output = fleet.orchestrator.text
    check_honest_learners(report, ("a", "b", "victim"))
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert r"mallory: victim: \x1b]0;gone\x07\u202eb: left\na: left" in reasons(report)

"""A learner with a valid credential that sends what no learner should send."""

import asyncio
import secrets
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from melisma.axon.codec.message import MAGIC, PRELUDE
from melisma.cycle import commands
from melisma.errors import (
    BusyError,
    MalformedError,
    RefusedError,
    SupersededError,
    TooLargeError,
    TooSlowError,
)
from melisma.live import protocol
from melisma.live.plausible import MAX_LOCAL_SHARDS
from melisma.runs.report import Report
from tests.live.attacks.attacked_fleet import (
    FEDERATED,
    GOOD_UPDATE,
    PLAUSIBLE_COSTS,
    AttackedFleet,
    HostileLearner,
    attacked_fleet,
    reasons,
    total,
)

WEIGHT, BIAS = GOOD_UPDATE["weight"], GOOD_UPDATE["bias"]
MAX_TRACE_BYTES = 400_000
"""Added to the trace by one learner that comes and goes as often as it can, in six seconds."""
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
        {"samples": 10**9, "labels": 10**9, "correct": 0, "loss_sum": 1e300},
        {"samples": 2**53, "labels": 2**53, "correct": 0, "loss_sum": -1e300},
        {"samples": 1, "labels": 2**53, "correct": 0, "loss_sum": 1e300},
        {"samples": 10**9, "labels": 10**9, "correct": 0, "loss_sum": 0.0, "finite": False},
        {"samples": 0, "labels": 2**53, "correct": 0, "loss_sum": 1e300},
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


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_floods_of_one_learner_do_not_disturb_the_others(tmp_path: Path, count: int) -> None:
    with attacked_fleet(tmp_path, learners=4, cycles=2, deadline_s=60.0) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        anchor, mallory = fleet.anchor(), fleet.hostile()
        mallory.join()
        assert anchor.at_work.wait(60)
        before_bytes = fleet.process.memory_info().rss
        too_large = {"weight": np.zeros(4 << 20, np.float32), "bias": BIAS}
        for method, *args in (
            ("upload_update", {}, too_large),
            ("probe_uplink", too_large),
            ("report_failure", "x" * 100_000),
            ("release_shards", 1, list(range(1 << 20))),
        ):
            with pytest.raises(TooLargeError):
                mallory.call(method, *args)
        with ThreadPoolExecutor(1) as pool:
            begun = Event()
            dripped = pool.submit(drip_updates, fleet, mallory, 20, begun)
            assert begun.wait(60)
            outcomes = asyncio.run(call_in_parallel(mallory, count))
            assert outcomes[BusyError] > count / 2
            assert fleet.process.memory_info().rss - before_bytes < (32 << 20) + count * (100 << 10)
            statuses = dripped.result()
        assert statuses[TooSlowError.status] > 0
        assert statuses[TooSlowError.status] + statuses[BusyError.status] == 20
        mallory.await_free_call()
        trace = fleet.run_folder / "trace.jsonl"
        before_bytes, began_at = trace.stat().st_size, time.monotonic()
        while time.monotonic() < began_at + 6.0:
            mallory.session = secrets.token_hex(16)
            mallory.join()
            mallory.call("report_failure", "again")
        assert trace.stat().st_size - before_bytes < MAX_TRACE_BYTES
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report)


def drip_updates(
    fleet: AttackedFleet, mallory: HostileLearner, count: int, begun: Event
) -> "Counter[int]":
    """Upload on many connections, a byte a second on each; return the HTTP statuses of the ends."""
    statuses: Counter[int] = Counter()
    sockets = [fleet.open_socket(mallory.device, timeout_s=30.0) for _ in range(count)]
    for sock in sockets:
        sock.settimeout(1 / count)
        head = b"POST /rpc/upload_update HTTP/1.1\r\ncontent-length: 400\r\n\r\n"
        sock.sendall(head + PRELUDE.pack(MAGIC, 400 - PRELUDE.size, 0))
    begun.set()
    while sockets:
        for sock in list(sockets):
            try:
                answer = sock.recv(1 << 16)
            except TimeoutError:
                sock.sendall(b"A")
            else:
                statuses[int(answer.split()[1])] += 1
                sockets.remove(sock)
                sock.close()
    return statuses


async def call_in_parallel(mallory: HostileLearner, count: int) -> Counter[type]:
    """Poll many times at once; return the types of the outcomes."""
    with mallory.device.connect() as remote:
        polls = [remote(deadline_s=10.0).aio.poll(mallory.session, None) for _ in range(count)]
        return Counter(map(type, await asyncio.gather(*polls, return_exceptions=True)))

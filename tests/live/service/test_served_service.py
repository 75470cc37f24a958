"""A service that devices join and to which tasks are submitted, with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from melisma.cycle import events
from melisma.runs.report import Report
from tests.live.service.service_lab import ServiceLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ServiceLab]:
    opened = ServiceLab(tmp_path, "--budget", "1000")
    try:
        yield opened
    finally:
        opened.close()


def test_tasks_are_submitted_trained_paid_and_their_results_kept(lab: ServiceLab) -> None:
    early = lab.submit("early")
    assert "no device has joined" in early.output
    lab.join("pi", "--price", "0.5")
    lab.join("laptop", "--price", "2")
    lab.wait_for_end("early")
    shown = lab.submit("later")
    assert "as submitted" in shown.output
    lab.wait_for_end("later")
    status = lab.status()
    assert [(task.name, task.state, task.cycle) for task in status.tasks] == [
        ("early", "finished", 2),
        ("later", "finished", 2),
    ]
    assert {each.name: each.price for each in status.learners} == {"pi": 0.5, "laptop": 2.0}
    payments = lab.ledger()
    assert {(row["task"], row["cycle"]) for row in payments} == {
        (name, cycle) for name in ("early", "later") for cycle in (1, 2)
    }
    prices = {"pi": 0.5, "laptop": 2.0}
    assert all(row["amount"] == row["shards"] * prices[row["name"]] for row in payments)
    assert sum(task.paid for task in status.tasks) == sum(row["amount"] for row in payments)
    result = lab.run("result", "later")
    assert "the deadline of 3 s held" in result.output
    lab.end()
    # Its queue is empty: devices are told that it has ended.
    assert [device.end() for device in lab.devices.values()] == [0, 0]
    kept = lab.run("result", "early", "--folder", str(lab.out))
    assert "service/1-early/model.safetensors" in kept.output


def test_a_killed_service_goes_on_with_its_queue_and_pays_nothing_twice(lab: ServiceLab) -> None:
    # Before any device joins, so that they begin at about the same time.
    lab.submit("first", cycles=4, pause_s=0.1)
    lab.submit("second", cycles=4, pause_s=0.1)
    lab.join("pi")
    lab.join("laptop")
    lab.wait_for(lambda: "cycle 1" in lab.service.output)
    lab.service.kill()
    lab.start()
    lab.wait_for_end("first", "second")
    for number, name in enumerate(("first", "second"), 1):
        report = Report.from_trace(lab.steps(number, name))
        assert report.outcome == "finished"
        assert report.restarts == 1
        # The devices went on with what they were doing.
        assert not [
            step for step in lab.steps(number, name) if isinstance(step.event, events.LearnersLeft)
        ]
    payments = [(row["task"], row["cycle"], row["name"]) for row in lab.ledger()]
    assert len(payments) == len(set(payments))
    paid = {(task, cycle) for task, cycle, _ in payments}
    assert paid == {(name, cycle) for name in ("first", "second") for cycle in range(1, 5)}


def test_a_task_without_a_plan_is_refused_with_the_nearest_deadline(lab: ServiceLab) -> None:
    lab.join("pi")
    lab.wait_for(lambda: "pi: registered" in lab.service.output)
    refused = lab.submit("hasty", deadline_s=0.01)
    assert refused.end() == 2
    assert "the task was not added" in refused.output
    assert "use deadline_s of hasty >=" in refused.output
    assert lab.status().tasks == ()
    # Nothing of it stays, and its name is free.
    lab.wait_for(lambda: not list(lab.out.glob("*-hasty")))
    assert lab.submit("hasty").end() == 0


def test_a_cancelled_task_keeps_its_results_and_its_devices_move_on(lab: ServiceLab) -> None:
    lab.join("pi")
    lab.submit("endless", cycles=500)
    lab.wait_for(lambda: "endless, cycle 1" in lab.service.output)
    unbegun = lab.run("resume", str(lab.out / "1-endless"))
    assert "is the folder of one of several tasks" in unbegun.output
    cancelled = lab.run("cancel", "endless")
    assert cancelled.end() == 0
    assert lab.submit("next").end() == 0
    lab.wait_for_end("next")
    assert lab.task("endless").state == "cancelled"
    assert "interrupted" not in lab.service.output
    assert "cancelled" in lab.run("result", "endless").output
    again = lab.run("cancel", "endless")
    assert again.end() == 2
    assert "has ended already: cancelled" in again.output


def test_a_task_that_is_cancelled_before_a_device_joins_leaves_the_service_intact(
    lab: ServiceLab,
) -> None:
    lab.submit("early")
    assert lab.run("cancel", "early").end() == 0
    lab.wait_for(lambda: "early: cancelled" in lab.service.output)
    assert [(task.name, task.state) for task in lab.status().tasks] == [("early", "cancelled")]
    lab.service.kill()
    lab.start()
    assert [task.state for task in lab.status().tasks] == ["cancelled"]
    # The number of a task whose folder is gone is not used again.
    lab.submit("early")
    assert [task.number for task in lab.status().tasks] == [1, 2]
    lab.end()
    assert "Traceback" not in lab.service.output


def test_another_budget_or_scheme_of_an_earlier_service_is_refused(lab: ServiceLab) -> None:
    lab.end()
    for option, value in (("--budget", "5"), ("--scheme", "fifo")):
        refused = lab.run("orchestrate", "--out", str(lab.out), option, value)
        assert refused.end() == 2
        assert "this service " in refused.output


def test_mistakes_of_the_owner_are_named(lab: ServiceLab, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('[task]\nname = "broken"\n')
    cases = {
        ("submit", "none.toml"): "none.toml: no such file",
        ("submit", "broken.toml"): "broken.toml",
        ("submit", "--yes", str(lab.write("own", 'mode = "federated"'))): "mode = federated",
        ("cancel", "nothing"): "no task is called 'nothing'",
        ("result", "nothing"): "no task called 'nothing' has begun",
        ("orchestrate", "--learners", "2"): "--learners is for one task",
        ("orchestrate", "--scheme", "dab"): "scheme dab plans one task at a time",
    }
    for arguments, problem in cases.items():
        shown = lab.run(*arguments)
        assert problem in shown.output, (arguments, shown.output)
        assert "Traceback" not in shown.output
        assert shown.end() == 2, arguments
    lab.submit("same", cycles=100)
    twice = lab.submit("same")
    assert "two tasks have the same name, same" in twice.output
    assert twice.end() == 2


def test_a_price_that_is_none_is_refused(lab: ServiceLab) -> None:
    device = lab.join("pi", "--price", "-1")
    assert device.end() == 2
    assert "price of pi is -1; expected a number from 0" in device.output

"""A plan in Python prints as a few lines and a table, in a notebook as HTML."""

import json

import melisma
from melisma import Fleet, Task

TASK = Task(name="d<i>gits", model="twonn", data="mnist", deadline_s=10.0, passes=1)
FLEET = Fleet.from_profiles({"kitchen": "raspberry-pi-4", "shed": "jetson-nano"})


def test_a_plan_has_a_row_for_each_learner() -> None:
    plan = melisma.plan(TASK, FLEET)
    heading, titles, *rows = str(plan).splitlines()
    assert heading == "d<i>gits: dab, 2 learners, keeps the deadline of 10 s"
    assert titles.split() == ["learner", "shards", "passes", "seconds"]
    assert [row.split()[0] for row in rows] == ["kitchen", "shed"]
    assert repr(plan) == "Plan(scheme='dab', feasible=True, is_met=True)"
    assert plan.forecast is not None
    assert plan.forecast["cycles_in_time"] == 1.0
    html = plan._repr_html_()
    assert html.count("<tr>") == 3
    assert "d&lt;i&gt;gits" in html
    json.dumps(plan.as_dict(), allow_nan=False)


def test_a_plan_that_cannot_be_found_says_why() -> None:
    plan = melisma.plan(TASK, FLEET, deadline_s=1e-3)
    assert not plan.feasible
    assert not plan.is_met
    assert plan.forecast is None
    assert plan.learners == []
    assert plan.table().rows == ()
    assert str(plan) == f"d<i>gits: no plan by dab: {plan.reason}"
    assert "use deadline_s >=" in plan.reason
    assert "<table>" not in plan._repr_html_()

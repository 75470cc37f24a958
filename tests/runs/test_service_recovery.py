"""Recovery of a service: the same decisions after every prefix, and no second payment."""

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.errors import DataError
from melisma.runs.payment_ledger import PaymentLedger
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import SERVICE_STEPS, ServiceStep
from melisma.runs.service_recovery import RecoveredService
from melisma.service import commands, events
from tests.service.recorded_steps import random_steps


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_a_replay_of_every_prefix_decides_the_same_and_pays_nothing_twice(seed: int) -> None:
    steps = random_steps(seed, cycles=3)
    encoded = list(map(SERVICE_STEPS.encode, steps))
    for length in range(1, len(steps) + 1):
        decoded = list(SERVICE_STEPS.decode(encoded[:length], "journal"))
        run = RecoveredService().replay(decoded)
        further = [
            ServiceStep(step.event, run.machine.handle(step.event)) for step in steps[length:]
        ]
        assert list(map(SERVICE_STEPS.encode, further)) == encoded[length:]
        # A payment that occurs twice would raise `DataError`.
        ledger = PaymentLedger.from_steps([*decoded, *further])
        for number, record in run.machine.state.tasks.items():
            paid = sum(each.amount for each in ledger.payments if each.number == number)
            assert record.account.paid == pytest.approx(paid)
            if record.account.budget is not None:
                assert record.account.paid <= record.account.budget * (1 + 1e-9)


def test_a_plan_and_a_timer_that_were_under_way_are_pending() -> None:
    steps = random_steps(3)
    kinds = set()
    for length in range(1, len(steps) + 1):
        run = RecoveredService().replay(steps[:length])
        kinds |= {type(each) for each in run.pending}
        issued = steps[length - 1].commands
        plans = [each for each in issued if isinstance(each, commands.PlanRound)]
        if plans:
            assert run.pending[0].reason == plans[0].reason
    assert kinds == {commands.PlanRound, commands.Wake}


def test_grants_of_tasks_in_a_cycle_are_known() -> None:
    steps = random_steps(4)
    for step, before in zip(steps, itertools.count(1), strict=False):
        granted = {n.number for n in step.commands if isinstance(n, commands.GrantShares)}
        if granted:
            assert granted <= set(RecoveredService().replay(steps[:before]).grants)
    ended = [step for step in steps if isinstance(step.event, events.CycleEnded)]
    assert ended


def test_a_journal_is_replayed_and_handled_events_are_counted(tmp_path: Path) -> None:
    steps = random_steps(5)
    journal = ServiceJournal.create(tmp_path)
    for step in steps:
        journal.write(step)
    run = RecoveredService.from_journal(journal)
    journal.close()
    assert run.at_s == max(step.event.at_s for step in steps)
    observed = [step for step in steps if isinstance(step.event, events.CycleAveraged)]
    assert sum(run.handled.values()) > len(observed) > 0
    assert run.progress.rounds


def test_a_version_that_decides_differently_refuses_to_go_on() -> None:
    steps = random_steps(6)
    index = next(i for i, step in enumerate(steps) if step.commands)
    (first, *others) = steps[index].commands
    other = [msgspec.structs.replace(first, reason="otherwise"), *others]
    steps[index] = ServiceStep(steps[index].event, other)
    with pytest.raises(DataError, match="decides differently"):
        RecoveredService().replay(steps)

"""Random fault schedules of services keep to all laws, and a broken one is found and shrunk."""

import re
from typing import Any

import pytest

import melisma
from melisma.service import events, service_machine
from melisma.service.accounts import Account, Settlement
from melisma.service.commands import Commands
from melisma.simulation import SimulationOptions
from melisma.simulation.service.service_fault_search import search_service_faults
from melisma.simulation.service.service_simulation import PreparedService, prepare_tasks
from tests.simulation.service.checked_service import GROUP, PRICES, two_tasks


def prepare(seed: int) -> PreparedService:
    late = "carry" if seed % 2 else "drop"
    tasks = two_tasks(45.0 if seed % 3 else None, late=late, quorum=0.5)
    fleet = melisma.Fleet.from_tables(group=[GROUP | {"price": PRICES}], seed=seed, budget=60.0)
    return prepare_tasks(tasks, fleet, SimulationOptions(work="timing", seed=seed), (0.0, 2.0))


def test_random_schedules_violate_no_law() -> None:
    failures = [each for each in search_service_faults(prepare, range(20)) if each is not None]
    assert failures == []


def test_a_second_payment_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def pay_twice(state: Any, event: Any) -> Commands:
        return [each for _ in range(2) for each in on_averaged(state, event)]

    on_averaged = service_machine.on_averaged
    settle = Account.settle

    def keep(self: Account, *arguments: Any) -> Settlement:
        covered, grants = self.covered, dict(self.grants)
        settled = settle(self, *arguments)
        self.covered, self.grants = covered, grants
        return settled

    monkeypatch.setattr(Account, "settle", keep)
    kind: type[events.Event] = events.CycleAveraged
    monkeypatch.setitem(service_machine.HANDLERS, kind, pay_twice)
    failure = next(search_service_faults(prepare, range(1)))
    assert failure is not None
    assert failure.law == "safety"
    # The journal of a schedule with crashes refuses a second row of the ledger, too.
    assert re.search("is paid twice|UNIQUE constraint failed: ledger", failure.violation)

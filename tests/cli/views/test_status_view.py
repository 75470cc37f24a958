"""The status of an orchestrator fits the terminal."""

from typing import Any

import msgspec
import pytest
from rich.console import Console

from melisma.cli.views.status_view import status_view
from melisma.live.orchestrator.status_service import LearnerStatus, OrchestratorStatus

NOTE = "its identity is in use elsewhere too (12 calls refused); slower: the CPU is too hot (81 C)"


def learner(name: str, **changes: Any) -> LearnerStatus:
    known = LearnerStatus(name, "training", "192.168.178.123", 12.0, 123456.0, "")
    return msgspec.structs.replace(known, **changes)


def status(*learners: LearnerStatus) -> OrchestratorStatus:
    return OrchestratorStatus(
        run="20261118-195501-digits",
        task="digits",
        scheme="dab",
        state="running",
        starts="",
        cycle=3,
        cycles=10,
        accuracy=0.9,
        loss=0.3,
        capacity_used=0.97,
        waits_s=None,
        learners=learners,
    )


def lines_of(view: Any, width: int) -> list[str]:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(view)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80])
def test_each_learner_has_one_row_and_a_long_note_its_own_lines(width: int) -> None:
    lines = lines_of(status_view(status(learner("kitchen", note=NOTE), learner("jetson"))), width)
    assert max(map(len, lines)) <= width
    kitchen, jetson = [number for number, line in enumerate(lines) if "training" in line]
    assert jetson == kitchen + 1
    assert " ".join(lines[jetson + 1 :]) == f"kitchen: {NOTE}"


def test_long_names_and_addresses_are_wrapped_and_nothing_else() -> None:
    host = "2001:db8:1234:5678:90ab:cdef:1234:5678"
    lines = lines_of(status_view(status(learner("k" * 40, host=host))), 80)
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "training" in line]
    assert row.endswith("12 s ago   123,456")
    joined = "".join(lines)
    assert joined.count("k") >= 40

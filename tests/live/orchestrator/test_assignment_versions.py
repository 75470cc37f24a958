"""What learners were given, in one version for each time that it was sent."""

from typing import Any

import numpy as np

from melisma.cycle import commands
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.ragged import RaggedArray
from melisma.live.orchestrator.assignment_versions import AssignmentVersions, InstructedWork


def command(kind: type, shards: list[int], attempt: int = 1, cycle: int = 1) -> Any:
    further: dict[type, dict[str, Any]] = {
        commands.Dispatch: {"seconds_left": 1.0, "tail_s": 0.1, "predicted_s": np.ones(1)},
        commands.Extend: {"handed_on": np.empty(0, np.int64)},
        commands.Resend: {"seconds_left": 1.0},
    }
    return kind(
        reason="test",
        learners=np.array([2]),
        cycle=cycle,
        attempts=np.array([attempt]),
        shards=RaggedArray.from_rows([np.array(shards)]),
        passes=np.array([1]),
        **further[kind],
    )


def shards_of(versions: AssignmentVersions, cycle: int = 1) -> list[dict[int, tuple[int, ...]]]:
    found = versions.versions(2, cycle)
    return [{n: part.shards for n, part in version.parts.items()} for version in found]


def test_extensions_belong_to_their_assignment() -> None:
    versions = AssignmentVersions()
    versions.dispatch(command(commands.Dispatch, [4, 1]))
    versions.extend(command(commands.Extend, [7], attempt=2))
    assert shards_of(versions) == [{1: (4, 1), 2: (7,)}]
    assert versions.versions(2, 1)[0].parts[2] == InstructedWork(1, (7,))


def test_a_repeated_assignment_is_another_version_beside_the_first() -> None:
    versions = AssignmentVersions()
    versions.dispatch(command(commands.Dispatch, [4, 1]))
    versions.resend(command(commands.Resend, [4]))
    versions.extend(command(commands.Extend, [9], attempt=2))
    assert shards_of(versions) == [{1: (4,), 2: (9,)}, {1: (4, 1), 2: (9,)}]
    assert all(version.complete for version in versions.versions(2, 1))


def test_what_an_earlier_process_gave_is_not_known_completely() -> None:
    versions = AssignmentVersions()
    versions.resend(command(commands.Resend, [4]))
    assert [version.complete for version in versions.versions(2, 1)] == [False]
    assert versions.versions(3, 1) == []


def test_assignments_of_long_ago_are_forgotten() -> None:
    versions = AssignmentVersions()
    versions.dispatch(command(commands.Dispatch, [4]))
    versions.dispatch(command(commands.Dispatch, [5], cycle=3 + MAX_LATE_CYCLES))
    assert shards_of(versions) == []
    assert shards_of(versions, 3 + MAX_LATE_CYCLES) == [{1: (5,)}]

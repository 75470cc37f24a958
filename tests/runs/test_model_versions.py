import msgspec
import pytest

from melisma.cycle import commands, events
from melisma.runs.model_versions import ModelVersions
from melisma.runs.trace import Step
from tests.cycle.recorded_runs import recorded_runs


def numbered(steps: list[Step]) -> list[Step]:
    """Return the steps with a version of its own for each average that has updates."""
    numbered_steps, version, averages = [], 0, False
    for step in steps:
        event = step.event
        if isinstance(event, events.Aggregated):
            version += averages
            event = msgspec.structs.replace(event, model=version)
        for command in step.commands:
            if isinstance(command, commands.Aggregate):
                averages = bool(command.learners.size or command.late.learners.size)
        numbered_steps.append(Step(event, step.commands))
    return numbered_steps


@pytest.mark.parametrize("kind", ["default rules", "federated", "all updates"])
def test_the_version_that_an_update_began_with_is_known_until_it_is_averaged(kind: str) -> None:
    for steps in recorded_runs(kind):
        versions, began = ModelVersions(), dict[int, int]()
        for step in numbered(steps):
            versions.apply(step)
            for command in step.commands:
                if isinstance(command, commands.Dispatch):
                    began.setdefault(command.cycle, versions.current)
                elif isinstance(command, commands.Aggregate):
                    for cycle in {*command.late.cycles.tolist()}:
                        assert versions.of_cycle[cycle] == began[cycle]
                        assert began[cycle] in versions.in_use


def aggregated(cycle: int, model: int, *issued: commands.AnyCommand) -> Step:
    return Step(events.Aggregated(at_s=1.0, cycle=cycle, seconds=0.0, model=model), [*issued])


def test_a_rejected_model_is_replaced_by_the_one_before() -> None:
    versions = ModelVersions()
    versions.apply(aggregated(1, 1))
    versions.apply(aggregated(2, 2, commands.Restore(reason="not finite", cycle=2)))
    assert (versions.current, versions.latest) == (1, 2)
    versions.apply(aggregated(3, 3))
    assert (versions.current, versions.before) == (3, 1)


def test_a_run_that_goes_on_may_choose_an_earlier_version() -> None:
    versions = ModelVersions()
    versions.apply(aggregated(1, 1))
    versions.apply(aggregated(2, 2))
    continued = events.TaskContinued(at_s=3.0, cycles=4, learner_count=1, model=1)
    versions.apply(Step(continued, []))
    assert (versions.current, versions.latest) == (1, 2)
    assert versions.in_use == {1}

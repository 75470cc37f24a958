"""What the steps of a task's cycle machine mean for the service; the same live and simulated."""

from collections.abc import Iterable

from melisma.cycle import commands as cycle_commands
from melisma.cycle import events as cycle_events
from melisma.service import events


def observe(
    number: int,
    event: cycle_events.AnyEvent,
    issued: Iterable[cycle_commands.AnyCommand],
) -> list[events.AnyEvent]:
    """Return the events of the service that follow from a step of a task."""
    observed: list[events.AnyEvent] = []
    dispatched = False
    if isinstance(event, cycle_events.Aggregated):
        observed.append(
            events.CycleAveraged(
                at_s=event.at_s,
                number=number,
                cycle=event.cycle,
                guarded=event.guarded,
                guarded_cycles=event.guarded_cycles,
                scales=event.scales,
            )
        )
    for command in issued:
        if isinstance(command, cycle_commands.RequestShares):
            observed.append(
                events.SharesRequested(
                    at_s=event.at_s,
                    number=number,
                    cycle=command.cycle,
                    learners=command.learners,
                    costs=command.costs[:, 0],
                )
            )
        elif isinstance(command, cycle_commands.Aggregate):
            observed.append(
                events.CycleEnded(at_s=event.at_s, number=number, covered=command.covered)
            )
        elif isinstance(command, cycle_commands.Finish):
            observed.append(
                events.TaskEnded(at_s=event.at_s, number=number, outcome=command.outcome)
            )
        dispatched |= isinstance(command, cycle_commands.Dispatch)
    if isinstance(event, cycle_events.SharesGranted) and not dispatched:
        # The task did not wait for shares any more, such as after all learners had left.
        observed.insert(0, events.CycleEnded(at_s=event.at_s, number=number))
    return observed

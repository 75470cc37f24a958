"""The part of a long run that its displays need after a restart.

The machine is restored from a snapshot. To show a month of cycles again would take half a minute,
and the report at the end of the run reads all of them anyway.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from melisma.cycle import commands, events
from melisma.runs.trace import Step

CYCLES: Final = 50
"""The latest cycles, more than a late update may be late."""
LASTING: Final = (
    *(events.TaskSubmitted, events.TaskContinued, events.OrchestratorRestarted),
    *(events.LearnersRegistered, events.LearnersJoined, events.LearnersLeft),
    *(events.IdentitiesShared,),
)
"""Events that say who is there, and what is trained."""


def recent_steps(steps: Iterable[Step], cycle: int) -> Iterator[Step]:
    """Yield the steps from the last `CYCLES` before `cycle` on, and earlier lasting events."""
    recent = cycle <= CYCLES
    for step in steps:
        recent = recent or _begins_after(step, cycle - CYCLES)
        if recent:
            yield step
        elif isinstance(step.event, LASTING):
            yield Step(step.event, [])


def _begins_after(step: Step, cycle: int) -> bool:
    """Return whether a step begins a cycle after this one."""
    begun = (commands.Dispatch, commands.Aggregate)
    return any(isinstance(each, begun) and each.cycle > cycle for each in step.commands)

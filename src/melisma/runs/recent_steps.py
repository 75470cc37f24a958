"""The part of a long run that its displays need after a restart.

The machine is restored from a snapshot. To show a month of cycles again would take half a minute,
and the report at the end of the run reads all of them anyway. Only the steps that are needed are
decoded.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from melisma.cycle import events
from melisma.runs.trace import Step, decode_steps

CYCLES: Final = 50
"""The latest cycles, more than a late update may be late."""
LASTING: Final = (
    *(events.TaskSubmitted, events.TaskContinued, events.OrchestratorRestarted),
    *(events.LearnersRegistered, events.LearnersJoined, events.LearnersLeft),
    *(events.IdentitiesShared,),
)
"""Events that say who is there, and what is trained."""
# Quotes in texts are escaped: these are keys and values of the encoding, and of nothing else.
LASTING_LINE: Final = tuple(f'{{"event":{{"event":"{kind.__name__}"'.encode() for kind in LASTING)
BEGUN: Final = re.compile(rb'"command":"(?:Dispatch|Aggregate)".*?"cycle":(\d+)', re.DOTALL)
"""A command with which a cycle begins, or after which an empty one ends, and its cycle."""


def recent_steps(lines: Iterable[bytes], cycle: int) -> Iterator[Step]:
    """Yield the steps from the last `CYCLES` before `cycle` on, and earlier lasting events.

    `lines` are those of `encode_step`.
    """
    recent = cycle <= CYCLES
    for line in lines:
        recent = recent or _begins_after(line, cycle - CYCLES)
        if recent:
            yield from decode_steps([line])
        elif line.startswith(LASTING_LINE):
            for step in decode_steps([line]):
                yield Step(step.event, [])


def _begins_after(line: bytes, cycle: int) -> bool:
    """Return whether a step begins a cycle after this one."""
    return any(int(number) > cycle for number in BEGUN.findall(line))

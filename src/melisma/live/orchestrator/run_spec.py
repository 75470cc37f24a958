"""What a run is about."""

from dataclasses import dataclass, field

from melisma.cycle.events import NO_FLOATS, Floats
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Trainer


@dataclass(frozen=True)
class RunSpec:
    """The task, its trainer, and the samples on which models are scored.

    There are none in federated learning where data lies on the devices only. `rates` are what
    learners cost, as `TaskSubmitted` says.
    """

    run: str
    task: Task
    trainer: Trainer
    test: Split
    rates: Floats = field(default_factory=lambda: NO_FLOATS)

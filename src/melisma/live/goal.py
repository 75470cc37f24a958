"""What a run is about."""

from dataclasses import dataclass

from melisma.fleet.task import Task
from melisma.learning.data import Split
from melisma.learning.trainer import Trainer


@dataclass(frozen=True)
class Goal:
    """The task, its trainer, and the samples on which models are scored.

    There are none in federated learning where data lies on the devices only.
    """

    run: str
    task: Task
    trainer: Trainer
    test: Split

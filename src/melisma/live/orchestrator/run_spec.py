"""The specification of one run."""

from dataclasses import dataclass, field

from melisma.fleet.array_types import NO_FLOATS, Floats
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Trainer
from melisma.live.code_bundle import CodeBundle


@dataclass(frozen=True)
class RunSpec:
    """A task with its trainer and the samples that models are evaluated on.

    Training starts from `initial`. `test` is empty in federated learning without central data.
    `rates` are the usage rates of the learners, as in `TaskSubmitted`. `bundle` is the source of
    the task's own model. A `shared` task shares its learners with others. `counts_from` is the
    monotonic time from which the total time of the task counts, None for the start of the run.
    """

    run: str
    task: Task
    trainer: Trainer
    initial: Arrays
    test: Split
    rates: Floats = field(default_factory=lambda: NO_FLOATS)
    bundle: CodeBundle | None = None
    counts_from: float | None = None
    shared: bool = False

"""What a task's model and data weigh, told by the things themselves where its file does not."""

from msgspec.structs import replace

from melisma.fleet.task import Task
from melisma.learning.data import DataSet, Split
from melisma.learning.parameters import Layout


def sized(task: Task, data: DataSet, layout: Layout) -> Task:
    """The task with the sizes of this data and of parameters laid out so; what it says stays."""
    said = task.sizes
    sizes = replace(
        said,
        samples=said.samples or len(data.train),
        sample_bytes=said.sample_bytes or sample_bytes(data.train),
        model_bytes=said.model_bytes or layout.size_bytes,
    )
    return replace(task, sizes=sizes)


def sample_bytes(split: Split) -> int:
    """Bytes of one sample with its label."""
    return split.samples[:1].nbytes + split.labels[:1].nbytes

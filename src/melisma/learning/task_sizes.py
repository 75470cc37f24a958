"""What a task's model and data weigh, told by the things themselves."""

from msgspec.structs import replace

from melisma.fleet.task import Sizes, Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.parameters import Layout


def sized(task: Task, data: DataSet, layout: Layout) -> Task:
    """The task with the sizes of this data and of parameters laid out so.

    Whatever its file says for planning: a task that runs counts the shards that there are. Only
    what a sample costs cannot be told from them.
    """
    sizes = Sizes(
        samples=len(data.train),
        sample_bytes=sample_bytes(data.train),
        model_bytes=layout.size_bytes,
        sample_ops=task.sizes.sample_ops,
    )
    return replace(task, sizes=sizes)


def sample_bytes(split: Split) -> int:
    """Bytes of one sample with its label."""
    return split.samples[:1].nbytes + split.labels[:1].nbytes

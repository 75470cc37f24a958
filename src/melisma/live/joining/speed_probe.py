"""A process that measures PyTorch on this device, and prints the result as JSON.

It is a process of its own because a PyTorch that was built for other processors ends its process
when it is imported.
"""

import sys
import time
from typing import Final

import msgspec

from melisma.errors import SettingError
from melisma.fleet.task import Task

PROBE_S: Final = 1.0
"""Time to train on each compute device."""
TASK: Final = Task(name="probe", model="twonn", data="mnist", deadline_s=PROBE_S, batch=32)
"""A small model for images of 28 by 28 pixels."""


class SpeedProbe(msgspec.Struct, frozen=True):
    """Versions, and samples/s by compute device; `problem` is set if PyTorch cannot be used."""

    torch_version: str = ""
    samples_per_s: dict[str, float] = {}
    problem: str = ""


def measure(probe_s: float = PROBE_S) -> SpeedProbe:
    """Train the small model for `probe_s` on each compute device."""
    from melisma.learning.trainer_factory import trainer_for

    try:
        trainer_for(TASK)
    except SettingError as error:
        return SpeedProbe(problem=str(error))
    from melisma.learning.pytorch.compute_device import available_devices

    speeds = {name: _samples_per_s(name, probe_s) for name in available_devices()}
    return SpeedProbe(str(sys.modules["torch"].__version__), speeds)


def _samples_per_s(device: str, probe_s: float) -> float:
    import numpy as np

    from melisma.learning.batches import batches_of
    from melisma.learning.data.datasets import Split
    from melisma.learning.trainer import synchronize
    from melisma.learning.trainer_factory import trainer_for

    rng, trainer = np.random.default_rng(1), trainer_for(TASK, device)
    images = rng.random((512, 1, 28, 28), dtype=np.float32)
    split = Split(images, rng.integers(0, 10, 512))
    model = trainer.initial()
    # The first batches also allocate memory and choose kernels.
    trainer.train(model, batches_of(split, 1, TASK.batch, rng), rng)
    visits, began = 0, time.monotonic()
    # At least one pass: a busy processor may take longer for it than `probe_s`.
    while visits == 0 or time.monotonic() - began < probe_s:
        visits += trainer.train(model, batches_of(split, 1, TASK.batch, rng), rng).visits
        synchronize(trainer)
    return visits / (time.monotonic() - began)


def main() -> int:
    """Print the measurement."""
    sys.stdout.write(msgspec.json.encode(measure()).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

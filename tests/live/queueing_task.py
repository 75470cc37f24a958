"""A PyTorch model, and a device for it that queues work like a GPU, in wall-clock time."""

import sys
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from melisma.learning.pytorch import torch_trainer


class QueueingDevice:
    """Works off each batch in `batch_s`, after those before it; the host waits only for the last.

    It reports the longest queue so far whenever that grows.
    """

    torch_device = torch.device("cpu")
    is_asynchronous = True

    def __init__(self, batch_s: float) -> None:
        self._batch_s, self._done_at, self._longest_s = batch_s, 0.0, 0.0

    def launch(self) -> None:
        """Queue a batch and return at once."""
        now = time.monotonic()
        self._done_at = max(now, self._done_at) + self._batch_s
        if self._done_at - now > self._longest_s:
            self._longest_s = self._done_at - now
            sys.stderr.write(f"queued {self._longest_s:.6f} s\n")
            sys.stderr.flush()

    def move(self, tensor: Tensor) -> Tensor:
        """Return a copy."""
        return tensor.clone()

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        while (left_s := self._done_at - time.monotonic()) > 0:
            time.sleep(left_s)

    def free_bytes(self) -> int:
        """Return enough for all shards."""
        return 1 << 30

    def rng_states(self) -> dict[str, Tensor]:
        return {"cpu": torch.get_rng_state()}

    def set_rng_states(self, states: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])


class Queueing(nn.Module):
    """A linear model, whose training steps are queued on the device if there is one."""

    device: QueueingDevice | None = None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.device is not None and self.training:
            self.device.launch()
        result: Tensor = self.linear(x)
        return result


def use_queueing_device(batch_s: float) -> None:
    """Train in this process on a device that queues work."""
    device = QueueingDevice(batch_s)
    Queueing.device = device
    torch_trainer.choose_device = lambda _name="auto", _available=None: device  # type: ignore[assignment, attr-defined]

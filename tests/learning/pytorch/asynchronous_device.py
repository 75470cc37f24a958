"""A device that queues work like a GPU, on the CPU and a clock of its own.

Forward passes of `Queueing` cost `batch_s`; the time passes only when the host waits for it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ManualClock:
    """Time passes only when something says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


class AsynchronousDevice:
    """Queues seconds of work; `synchronize` lets them pass."""

    torch_device = torch.device("cpu")
    is_asynchronous = True

    def __init__(self, clock: ManualClock, batch_s: float = 0.001, free: int = 1 << 30) -> None:
        self.clock, self.batch_s, self.free = clock, batch_s, free
        self.queued_s, self.longest_queue_s, self.moved_bytes = 0.0, 0.0, 0
        self.waits = 0

    def launch(self) -> None:
        self.queued_s += self.batch_s
        self.longest_queue_s = max(self.longest_queue_s, self.queued_s)

    def move(self, tensor: Tensor) -> Tensor:
        self.moved_bytes += tensor.element_size() * tensor.numel()
        return tensor.clone()

    def synchronize(self) -> None:
        self.waits += 1
        self.clock.now_s += self.queued_s
        self.queued_s = 0.0

    def free_bytes(self) -> int:
        return self.free

    def rng_states(self) -> dict[str, Tensor]:
        return {"cpu": torch.get_rng_state()}

    def set_rng_states(self, states: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])


class Queueing(nn.Module):
    """A linear model that announces its work to the device that is set."""

    device: AsynchronousDevice | None = None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        if self.device is not None and self.training:
            self.device.launch()
        return self.linear(x)

"""The device that PyTorch computes on: the processor, or a GPU.

A GPU is asynchronous: operations are queued and return at once. Times are right only after
`synchronize`, and a training that is to stop must not have queued more than a moment of work.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from melisma.errors import SettingError, suggest

DEVICE_NAMES: Final = ("auto", "cpu", "cuda", "mps")
MAX_QUEUED_S: Final = 0.02
"""Work that a training queues on a device: it overruns its end by no more than this and a batch."""
MAX_QUEUED_BATCHES: Final = 64


class ComputeDevice(Protocol):
    """The operations of a device that training needs."""

    @property
    def torch_device(self) -> torch.device:
        """The device of models and tensors."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether operations return before they are done."""

    def move(self, tensor: Tensor) -> Tensor:
        """Return the tensor on this device; itself if it is there."""

    def synchronize(self) -> None:
        """Wait until all queued operations are done."""

    def free_bytes(self) -> int:
        """Return the memory that is free for data."""

    def rng_states(self) -> dict[str, Tensor]:
        """Return the state of each generator that a model may draw from, by name."""

    def set_rng_states(self, states: Mapping[str, Tensor]) -> None:
        """Set the generators to such states."""


class Processor:
    """The CPU: operations are done when they return."""

    torch_device = torch.device("cpu")
    is_asynchronous = False

    def move(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def synchronize(self) -> None:
        """Do nothing: no operation is queued."""

    def free_bytes(self) -> int:
        """Return 0: batches are taken from the memory of the process, without copies."""
        return 0

    def rng_states(self) -> dict[str, Tensor]:
        """Return the state of the generator of the CPU."""
        return {"cpu": torch.get_rng_state()}

    def set_rng_states(self, states: Mapping[str, Tensor]) -> None:
        """Set the generator of the CPU."""
        torch.set_rng_state(states["cpu"])


class Gpu:
    """A GPU by its name in PyTorch, ``cuda`` or ``mps``."""

    is_asynchronous = True

    def __init__(self, name: str) -> None:
        self.torch_device = torch.device(name)

    def move(self, tensor: Tensor) -> Tensor:
        """Return a copy on the GPU; the host need not wait for it."""
        return tensor.to(self.torch_device, non_blocking=True)

    def synchronize(self) -> None:
        """Wait until the GPU has done all queued operations."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)
        else:
            torch.mps.synchronize()

    def free_bytes(self) -> int:
        """Return the free memory of the GPU, as its driver reports it."""
        if self.torch_device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.torch_device)[0])
        used = torch.mps.driver_allocated_memory()
        return max(0, int(torch.mps.recommended_max_memory()) - int(used))

    def rng_states(self) -> dict[str, Tensor]:
        """Return the states of the generators of the CPU and of the GPU."""
        cuda = self.torch_device.type == "cuda"
        own = torch.cuda.get_rng_state(self.torch_device) if cuda else torch.mps.get_rng_state()
        return {"cpu": torch.get_rng_state(), self.torch_device.type: own}

    def set_rng_states(self, states: Mapping[str, Tensor]) -> None:
        """Set the generators of the CPU and of the GPU."""
        torch.set_rng_state(states["cpu"])
        if self.torch_device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.torch_device)
        else:
            torch.mps.set_rng_state(states["mps"])


def available_devices() -> list[str]:
    """Return the names of the devices that PyTorch finds here, the fastest first."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, is_there in found.items() if is_there), "cpu"]


def choose_device(
    name: str = "auto", available: Callable[[], list[str]] = available_devices
) -> ComputeDevice:
    """Return the device of that name; `auto` chooses cuda, then mps, then cpu.

    Raises `SettingError` for one that is not there, with those that are.
    """
    if name not in DEVICE_NAMES:
        raise SettingError(f"device is {name!r}; {suggest(name, DEVICE_NAMES)}")
    found = available()
    if name != "auto" and name not in found:
        raise SettingError(
            f"device is {name!r}, but PyTorch {torch.__version__} finds only {', '.join(found)} "
            f"here: use device = 'auto', or install the driver and a PyTorch that supports {name}"
        )
    chosen = found[0] if name == "auto" else name
    return Processor() if chosen == "cpu" else Gpu(chosen)


class LossQueue:
    """Losses of batches, and the bound of what is queued on a device.

    On an asynchronous device the losses are read together, when `MAX_QUEUED_S` of work is queued;
    before a batch was timed, after each batch.
    """

    def __init__(self, device: ComputeDevice, now_s: Callable[[], float] = time.monotonic) -> None:
        self.visits, self.loss_sum = 0, 0.0
        self._device, self._now_s = device, now_s
        self._queued: list[tuple[Tensor, int]] = []
        self._most = 1
        self._began_s = now_s()

    def add(self, loss: Tensor, samples: int) -> None:
        """Add the mean loss of a batch; wait for the device if enough is queued."""
        if not self._device.is_asynchronous:
            self._count(loss.item(), samples)
            return
        self._queued.append((loss.detach(), samples))
        if len(self._queued) >= self._most:
            self.drain()

    def drain(self) -> None:
        """Wait for the device and read the losses."""
        if not self._queued:
            return
        losses = torch.stack([loss for loss, _ in self._queued])
        self._device.synchronize()
        for loss, (_, samples) in zip(losses.tolist(), self._queued, strict=True):
            self._count(loss, samples)
        now_s = self._now_s()
        batch_s = max((now_s - self._began_s) / len(self._queued), 1e-9)
        self._most = max(1, min(MAX_QUEUED_BATCHES, int(MAX_QUEUED_S / batch_s)))
        self._queued, self._began_s = [], now_s

    def _count(self, loss: float, samples: int) -> None:
        self.visits, self.loss_sum = self.visits + samples, self.loss_sum + loss * samples

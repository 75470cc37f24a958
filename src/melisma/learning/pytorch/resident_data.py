"""Samples on a GPU: each shard is moved once, and batches are taken from it there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from melisma.learning.batches import Batch, BatchPart
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.compute_device import ComputeDevice

MEMORY_FRACTION: Final = 0.5
"""The share of a GPU's free memory for samples; models and their gradients need the rest."""
ToTensor = Callable[[NDArray[Any]], Tensor]


@dataclass(eq=False)
class _Resident:
    """The copy of arrays on the device, of which the first `rows` rows are there."""

    source: Split
    samples: Tensor
    labels: Tensor
    rows: int = 0


class ResidentData:
    """The samples of one training on a device, up to `max_bytes`.

    What does not fit is moved batch by batch.
    """

    def __init__(
        self,
        device: ComputeDevice,
        samples_tensor: ToTensor,
        labels_tensor: ToTensor,
        max_bytes: int | None = None,
    ) -> None:
        self._device = device
        self._samples_tensor, self._labels_tensor = samples_tensor, labels_tensor
        free = int(MEMORY_FRACTION * device.free_bytes()) if max_bytes is None else max_bytes
        self._left_bytes = free
        self._residents: dict[int, _Resident | None] = {}

    def tensors(self, batch: Split) -> tuple[Tensor, Tensor]:
        """Return samples and labels of a batch on the device."""
        if not self._device.is_asynchronous:
            return self._convert(batch)
        if not isinstance(batch, Batch):
            return self._move(batch)
        pairs = [self._take(part) for part in batch.parts]
        if len(pairs) == 1:
            return pairs[0]
        samples, labels = zip(*pairs, strict=True)
        return torch.cat(samples), torch.cat(labels)

    def _take(self, part: BatchPart) -> tuple[Tensor, Tensor]:
        resident = self._resident(part.source)
        if resident is None:
            return self._move(part.source.take(part.rows))
        if resident.rows < part.arrived:
            new = slice(resident.rows, part.arrived)
            source = resident.source
            samples, labels = self._move(Split(source.samples[new], source.labels[new]))
            resident.samples[new], resident.labels[new] = samples, labels
            resident.rows = part.arrived
        rows = self._device.move(torch.from_numpy(part.rows))
        return resident.samples[rows], resident.labels[rows]

    def _resident(self, source: Split) -> _Resident | None:
        """Return the place of these arrays on the device; None if they do not fit."""
        key = id(source)  # of arrays that `_Resident` or the stream of batches holds
        if key not in self._residents:
            self._residents[key] = self._allocate(source)
        return self._residents[key]

    def _allocate(self, source: Split) -> _Resident | None:
        """Reserve memory of the form that the first row has on the device."""
        first = self._convert(Split(source.samples[:1], source.labels[:1]))
        size_bytes = len(source) * sum(tensor.element_size() * tensor.numel() for tensor in first)
        if size_bytes > self._left_bytes:
            return None
        self._left_bytes -= size_bytes
        shapes = [(len(source), *tensor.shape[1:]) for tensor in first]
        samples, labels = (
            torch.empty(shape, dtype=tensor.dtype, device=self._device.torch_device)
            for shape, tensor in zip(shapes, first, strict=True)
        )
        return _Resident(source, samples, labels)

    def _move(self, split: Split) -> tuple[Tensor, Tensor]:
        samples, labels = self._convert(split)
        return self._device.move(samples), self._device.move(labels)

    def _convert(self, split: Split) -> tuple[Tensor, Tensor]:
        return self._samples_tensor(split.samples), self._labels_tensor(split.labels)

"""Data as Python objects: arrays, tensors and data sets give the same samples."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from melisma.errors import SettingError
from melisma.learning.data.memory_data import to_memory_data
from tests.live.tiny_task import blobs

(SAMPLES, LABELS), TEST = blobs()


class Points(Dataset[Any]):
    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.from_numpy(SAMPLES[index]), int(LABELS[index])


class Ragged(Points):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.zeros(index % 3), 0


@pytest.mark.parametrize(
    "train",
    [
        (SAMPLES, LABELS),
        [torch.from_numpy(SAMPLES).requires_grad_(), torch.from_numpy(LABELS)],
        TensorDataset(torch.from_numpy(SAMPLES), torch.from_numpy(LABELS)),
        Points(),
        Subset(Points(), range(len(LABELS))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_form_gives_the_same_samples(train: Any) -> None:
    data = to_memory_data((train, TEST))
    np.testing.assert_array_equal(data.train.samples, SAMPLES)
    np.testing.assert_array_equal(data.train.labels, LABELS)
    assert data.train.samples.dtype == np.float32
    assert len(data.test) == 200


def test_test_samples_may_be_missing() -> None:
    assert len(to_memory_data(((SAMPLES, LABELS), None)).test) == 0


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Ragged(), "its samples or labels differ in shape"),
        (5, "data: train is a int; expected a pair of arrays"),
        ((SAMPLES, LABELS, LABELS), "data: train has 3 parts; expected two"),
        ((SAMPLES * np.nan, LABELS), "train samples contain NaN"),
        ((SAMPLES[:0], LABELS[:0]), "train has no samples"),
        (
            (SAMPLES[:, :3], LABELS),
            "train samples are float32\\[3\\], but test samples float32\\[4\\]",
        ),
    ],
    ids=["ragged", "number", "three", "nan", "empty", "shape"],
)
def test_data_that_cannot_be_trained_is_refused(train: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        to_memory_data((train, TEST))

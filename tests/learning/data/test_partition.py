from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.task import PartitionSettings
from melisma.learning.data.partition import partition_by_sizes, shuffle_into_shards

LABELS = np.repeat(np.arange(10), 60).astype(np.uint8)
KINDS = [
    PartitionSettings(kind="iid"),
    PartitionSettings(kind="sorted"),
    PartitionSettings(kind="dirichlet", alpha=0.3),
]


def dealt(partition: PartitionSettings, sizes: list[int], seed: int = 0) -> list[NDArray[np.int64]]:
    shuffled = np.random.default_rng(9).permutation(LABELS)
    return partition_by_sizes(shuffled, np.array(sizes), partition, np.random.default_rng(seed))


def variety(parts: list[NDArray[np.int64]]) -> float:
    """How many labels a device has, on average."""
    shuffled = np.random.default_rng(9).permutation(LABELS)
    return float(np.mean([np.unique(shuffled[part]).size for part in parts]))


@pytest.mark.parametrize("partition", KINDS, ids=lambda kind: kind.kind)
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=10), seed=st.integers(0, 99))
def test_every_device_has_its_size_and_no_sample_is_assigned_twice(
    partition: PartitionSettings, sizes: list[int], seed: int
) -> None:
    parts = dealt(partition, sizes, seed)
    assert [part.size for part in parts] == sizes
    every = np.concatenate(parts)
    assert np.unique(every).size == every.size
    assert every.size == 0 or 0 <= every.min() <= every.max() < LABELS.size


def test_labels_are_as_unequal_as_the_partition_states() -> None:
    iid, two, _ = (dealt(kind, [60] * 10) for kind in KINDS)
    assert variety(iid) > 9
    assert variety(two) <= 4
    few, many = (
        variety(dealt(PartitionSettings(kind="dirichlet", alpha=alpha), [60] * 10))
        for alpha in (0.05, 100.0)
    )
    assert few < 6 < 9 < many


def test_all_samples_can_be_assigned() -> None:
    for kind in KINDS:
        assert np.sort(np.concatenate(dealt(kind, [60] * 10))).tolist() == list(range(600))


def test_shards_hold_all_samples_and_the_last_may_be_short() -> None:
    parts = shuffle_into_shards(103, 25, np.random.default_rng(0))
    assert [part.size for part in parts] == [25, 25, 25, 25, 3]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(103))


@pytest.mark.parametrize("kind", ["sorted", "dirichlet"])
@pytest.mark.parametrize("labels", [np.zeros(9), np.zeros((9, 2), np.int64)])
def test_partitions_by_label_need_integer_labels(kind: Any, labels: NDArray[Any]) -> None:
    with pytest.raises(
        SettingError, match=f"partition {kind} needs one integer label per sample; found"
    ):
        partition_by_sizes(
            labels, np.array([4, 4]), PartitionSettings(kind=kind), np.random.default_rng(0)
        )
    parts = partition_by_sizes(
        labels, np.array([4, 4]), PartitionSettings(), np.random.default_rng(0)
    )
    assert [part.size for part in parts] == [4, 4]


HERE = "tests.learning.data.test_partition:"


def in_order(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return np.split(np.argsort(labels, kind="stable")[: sizes.sum()], np.cumsum(sizes)[:-1])


def one_device(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return [np.arange(sizes.sum())]


def equal_parts(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return np.split(np.arange(40), sizes.size)


def fractions(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return [np.zeros(size) for size in sizes]


def beyond(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return [np.arange(size) + len(labels) for size in sizes]


def shared(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    return [np.arange(size) for size in sizes]


def raises(labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator) -> Any:
    raise IndexError("no such label")


def test_a_function_of_the_user_assigns_samples() -> None:
    parts = dealt(PartitionSettings(kind=HERE + "in_order"), [60] * 10)
    assert [part.size for part in parts] == [60] * 10
    assert variety(parts) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one_device", "returned samples of 1 devices; expected 2"),
        ("equal_parts", r"device 0 has samples \[20\]; expected 30 numbers"),
        ("fractions", "the samples of device 0 are float64; expected whole numbers"),
        ("beyond", "samples range from 600 to 629; expected 0 to 599"),
        ("shared", "sample 0 is used twice; expected each at most once"),
        ("raises", r"IndexError: no such label \(test_partition.py, line"),
        ("missing", "has no missing"),
    ],
)
def test_an_invalid_result_names_the_function(name: str, says: str) -> None:
    with pytest.raises(SettingError, match=f"^partition.kind {HERE}{name}: .*{says}"):
        dealt(PartitionSettings(kind=HERE + name), [30, 10])


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"kind is 'dirichlett'; did you mean dirichlet\?"):
        PartitionSettings(kind="dirichlett")
    with pytest.raises(ValueError, match=r"or package.module:function$"):
        PartitionSettings(kind="xyzzy")

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning import aggregation
from melisma.learning.aggregation import (
    RunningMean,
    SpooledUpdate,
    StartShares,
    UpdateSpool,
    add_parameters,
    weighted_mean,
)
from melisma.learning.parameters import Layout

Update = dict[str, NDArray[Any]]


def update(seed: int) -> Update:
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.normal(size=(30, 7)).astype(np.float32),
        "bias": rng.normal(size=7),
        "batches": np.array([seed], dtype=np.int64),
        "scalar": np.array(float(seed), dtype=np.float32),
    }


LAYOUT = Layout.from_arrays(update(0))


@pytest.fixture(params=[1 << 17, 8])
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> UpdateSpool:
    monkeypatch.setattr(aggregation, "CHUNK_NUMBERS", request.param)
    return UpdateSpool(tmp_path / "cycle", LAYOUT)


def test_the_mean_is_weighted_and_independent_of_the_order_of_arrival(spool: UpdateSpool) -> None:
    weights = [1.0, 500.0, 20.5]
    updates = [update(seed) for seed in range(3)]
    pairs = enumerate(zip(weights, updates, strict=True))
    spooled = [SpooledUpdate(k, w, spool.add(str(k), u)) for k, (w, u) in pairs]
    mean = weighted_mean(LAYOUT, spooled)
    for name in ("weight", "bias", "scalar"):
        expected = np.average([u[name] for u in updates], axis=0, weights=weights)
        np.testing.assert_allclose(mean[name], expected, rtol=1e-6)
        assert mean[name].dtype == updates[0][name].dtype
    assert mean["batches"].tolist() == [0]
    other = weighted_mean(LAYOUT, spooled[::-1])
    assert all(np.array_equal(mean[name], other[name]) for name in mean)


def test_a_repeated_update_of_a_learner_replaces_the_first(spool: UpdateSpool) -> None:
    spool.add("1", update(1))
    again = SpooledUpdate(1, 1.0, spool.add("1", update(2)))
    mean = weighted_mean(LAYOUT, [again])
    np.testing.assert_array_equal(mean["weight"], update(2)["weight"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight", np.zeros((7, 30), np.float32), r"weight is float32\[7, 30\]; expected float32"),
        ("weight", np.zeros((30, 7)), r"weight is float64\[30, 7\]; expected float32\[30, 7\]"),
        ("bias", np.full(7, np.nan), "bias holds numbers that are not finite"),
        ("scalar", np.array(np.inf, np.float32), "scalar holds numbers that are not finite"),
        ("more", np.zeros(1), "more is not of this model"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(
    spool: UpdateSpool, tmp_path: Path, name: str, value: NDArray[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        spool.add("1", update(0) | {name: value})
    assert not list((tmp_path / "cycle").iterdir())


def test_the_error_about_a_missing_array_names_it(spool: UpdateSpool) -> None:
    partial = update(0)
    del partial["bias"]
    with pytest.raises(DataError, match="bias is missing"):
        spool.add("1", partial)


def test_updates_without_weight_have_no_mean(spool: UpdateSpool) -> None:
    with pytest.raises(
        DataError, match=r"the weights of 1 updates sum to 0\.0; expected a sum above 0"
    ):
        weighted_mean(LAYOUT, [SpooledUpdate(1, 0.0, spool.add("1", update(0)))])


def test_parameters_are_contiguous_bytes() -> None:
    whole = LAYOUT.pack(update(5))
    assert len(whole) == LAYOUT.size_bytes == 30 * 7 * 4 + 7 * 8 + 8 + 4
    for name, array in LAYOUT.unpack(whole).items():
        np.testing.assert_array_equal(array, update(5)[name])
    with pytest.raises(DataError, match="parameters of 3 bytes; expected 908"):
        LAYOUT.unpack(b"abc")


def test_products_have_double_precision(tmp_path: Path) -> None:
    layout = Layout.from_arrays({"a": np.zeros(2, np.float32)})
    spool = UpdateSpool(tmp_path, layout)
    rng = np.random.default_rng(1)
    updates, exact = [], np.zeros(2)
    for learner in range(300):
        values, weight = rng.random(2).astype(np.float32), float(rng.random())
        updates.append(SpooledUpdate(learner, weight, spool.add(str(learner), {"a": values})))
        exact += values.astype(np.float64) * weight
    exact /= sum(each.weight for each in updates)
    np.testing.assert_array_equal(weighted_mean(layout, updates)["a"], exact.astype(np.float32))


def test_the_change_of_a_late_update_is_applied_to_the_present_parameters() -> None:
    """With update x of an earlier model, the mean counts x - earlier + present."""
    present, earlier, late, current = map(update, range(4))
    share = 0.25
    names = ("weight", "bias", "scalar")
    mean: Update = {name: share * late[name] + (1 - share) * current[name] for name in names}
    mean["batches"] = np.array([7])
    shifted = add_parameters(mean, present, [StartShares(share, share, earlier)])
    for name in names:
        moved = late[name] - earlier[name] + present[name]
        expected = share * moved + (1 - share) * current[name]
        np.testing.assert_allclose(shifted[name], expected, rtol=1e-5, atol=1e-6)
        assert shifted[name].dtype == mean[name].dtype
    assert shifted["batches"].tolist() == present["batches"].tolist() == [0]


def test_without_late_updates_the_mean_stays() -> None:
    mean = update(1)
    shifted = add_parameters(mean, update(5), [StartShares(1.0, 1.0, None)])
    for name in ("weight", "bias", "scalar"):
        np.testing.assert_array_equal(shifted[name], mean[name])
    assert shifted["batches"].tolist() == [5]


def test_no_update_changes_integers_and_booleans(tmp_path: Path) -> None:
    present: Update = {
        "index": np.arange(3),
        "weight": np.zeros(2, np.float32),
        "mask": np.array([True, False]),
        "count": np.array(5),
    }
    hostile: Update = {
        "index": np.array([99, -7, 2]),
        "weight": np.ones(2, np.float32),
        "mask": np.array([False, False]),
        "count": np.array(-1),
    }
    layout, whole = Layout.from_arrays(present), [StartShares(1.0, 1.0, None)]
    spool = UpdateSpool(tmp_path, layout)
    updates = [
        SpooledUpdate(0, 1.0, spool.add("0", present)),
        SpooledUpdate(1, 3.0, spool.add("1", hostile)),
    ]
    running = RunningMean(layout)
    running.add(
        np.array([0.25, 0.75]), {name: np.stack([present[name], hostile[name]]) for name in present}
    )
    for mean in (weighted_mean(layout, updates), running.result()):
        averaged = add_parameters(mean, present, whole)
        assert list(averaged) == list(present)
        assert averaged["weight"].tolist() == [0.75, 0.75]
        for name in ("index", "mask", "count"):
            np.testing.assert_array_equal(averaged[name], present[name])
            assert averaged[name].dtype == present[name].dtype

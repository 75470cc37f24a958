"""Files of a run are for their owner alone, whatever the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest

from melisma.atomic import write_atomic
from melisma.learning.aggregation import UpdateSpool
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardCache, ShardFolder
from melisma.learning.parameters import Layout
from melisma.private_files import make_private_folder, open_private, write_private
from melisma.runs.folder import create_run_folder
from melisma.runs.svg import Picture, save_picture
from tests.live.orchestrator.stored_run import begin_cycle, make_store


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Let new files be readable and writable by everybody by default."""
    before = os.umask(0)
    yield
    os.umask(before)


def is_private(path: Path) -> bool:
    return not S_IMODE(path.stat().st_mode) & 0o077


def test_a_new_folder_and_its_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "a" / "b")
    write_private(folder / "new", b"1")
    with open_private(folder / "appended", "ab") as file:
        file.write(b"2")
    write_atomic(folder / "c" / "atomic", b"3", mode=0o600)
    assert is_private(folder)
    assert is_private(folder / "c")
    assert all(is_private(path) for path in folder.rglob("*"))


def test_the_mode_of_a_folder_that_exists_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    assert S_IMODE(make_private_folder(tmp_path / "mine").stat().st_mode) == 0o755


def test_files_that_are_not_private_have_the_usual_mode(tmp_path: Path) -> None:
    assert not is_private(write_atomic(tmp_path / "picture.svg", b"1"))


def test_a_run_folder_and_everything_in_it_are_private(tmp_path: Path) -> None:
    folder, arrays = create_run_folder(tmp_path / "run"), {"weight": np.zeros(3)}
    data = Split(np.zeros((4, 2)), np.zeros(4))
    layout = Layout.from_arrays(arrays)
    shards = ShardFolder(folder / "shards", data, [np.arange(4)])
    store = make_store(folder, arrays, shards=shards)
    begin_cycle(store, 1)
    store.spool((0, 1, 1), arrays)
    UpdateSpool(folder / "others", layout).add("1", arrays)
    save_picture(lambda: Picture("<svg/>"), folder / "picture.svg")
    cache = ShardCache(folder / "cache", 10**6)
    cache.append(shards.shards[0].sha256, b"part")
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 10
    assert [path for path in paths if not is_private(path)] == []
    store.close()

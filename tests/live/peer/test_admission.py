"""The key of a node: where it is kept, and that it stays."""

from pathlib import Path
from threading import Thread

import pytest

from melisma.errors import SettingError
from melisma.live.peer.admission import load_node_key


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / "other-home"
    monkeypatch.setenv("MELISMA_HOME", str(path))
    return path


def test_the_key_of_a_node_is_kept_in_melisma_home_for_its_owner_alone(home: Path) -> None:
    key, other = load_node_key("a"), load_node_key("b")
    path = home / "peers" / "a.key"
    assert load_node_key("a").public == key.public != other.public
    assert path.read_text() == key.to_text()
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


def test_nodes_that_create_one_key_at_the_same_time_agree(home: Path) -> None:
    keys: list[str] = []
    threads = [Thread(target=lambda: keys.append(load_node_key("a").public)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_a_file_without_a_key_is_named(home: Path) -> None:
    load_node_key("a")
    path = home / "peers" / "a.key"
    path.write_text("")
    with pytest.raises(SettingError, match=r"a\.key does not contain the key of a node: delete"):
        load_node_key("a")

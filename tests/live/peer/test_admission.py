"""The key of a node, which is kept, and errors of the exchange of proofs."""

from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from melisma.errors import SettingError, UnauthorizedError
from melisma.live.peer.admission import Admission, load_node_key
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import NodeKey


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


class DirectCalls:
    """Calls a node without a network."""

    def __init__(self, node: Admission) -> None:
        self._node = node

    def __call__(self, **_: float) -> "DirectCalls":
        return self

    def introduce(self, nonce: bytes) -> Any:
        return msgspec.structs.asdict(self._node.introduce(nonce))


def test_errors_name_the_address_without_its_token() -> None:
    keys = NodeKey.create(), NodeKey.create(), NodeKey.create()
    node = Admission("b", "token", keys[0], KeyRing("b"))
    caller = Admission("a", "token", keys[1], KeyRing("a", given={"b": keys[2].public}))
    remote: Any = DirectCalls(node)
    address, shown = "http://secret@127.0.0.1:1", "the node at http://127.0.0.1:1"
    with pytest.raises(UnauthorizedError, match=f"^{shown} is b, not c: check the address$"):
        caller.meet(remote, address, "c", 1.0)
    with pytest.raises(UnauthorizedError, match=f"^{shown}: the name b belongs to another key"):
        caller.meet(remote, address, "b", 1.0)
    stranger: Any = DirectCalls(Admission("b", "wrong", keys[0], KeyRing("b")))
    with pytest.raises(UnauthorizedError, match=f"^{shown} did not prove to know the token"):
        caller.meet(stranger, address, "b", 1.0)

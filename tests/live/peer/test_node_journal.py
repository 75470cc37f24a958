"""The file from which a killed node resumes."""

import shutil
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest

from melisma.errors import DataError, SettingError
from melisma.live.peer.node_journal import (
    MAX_INBOX_MESSAGES,
    NodeJournal,
    NodeRecord,
    check_unused,
)
from melisma.peer.node_snapshot import ReceivedMessage, take_snapshot
from melisma.peer.sent_messages import SentMessages
from melisma.runs.peer_report import NodeRecorder
from tests.peer.tiny_nodes import IntegerSteps, heartbeat, new_node, start, update


def record(addresses: dict[str, str] | None = None) -> NodeRecord:
    node = start(new_node())
    steps = IntegerSteps(np.random.default_rng(1))
    return NodeRecord(
        options={"part": "1/1"},
        start_unix_s=1.5,
        node=take_snapshot(node, steps, 2, SentMessages()),
        figures=NodeRecorder(node).figures(),
        addresses=addresses or {},
    )


def test_a_journal_returns_the_last_snapshot_and_the_messages_after_it(folder: Path) -> None:
    journal = NodeJournal(folder, "a")
    assert journal.load() is None
    numbers = [journal.keep(update(number), "key") for number in (1, 2, 3)]
    journal.save(record(), numbers[:1])
    journal.save(record({"b": "http://127.0.0.1:9"}), [numbers[2]])
    assert journal.keep(heartbeat(), "key") == 0
    numbers.append(journal.keep(update(4), ""))
    journal.close()
    again = NodeJournal(folder, "a")
    loaded = again.load()
    assert loaded is not None
    assert loaded[0].addresses == {"b": "http://127.0.0.1:9"}
    assert loaded[0].node.steps_left == 2
    assert loaded[1] == [ReceivedMessage(update(2), "key"), ReceivedMessage(update(4))]
    assert again.inbox == [numbers[1], numbers[3]]
    assert again.keep(update(5), "") > numbers[3]
    again.close()


def test_messages_before_the_first_snapshot_are_forgotten(folder: Path) -> None:
    """The node had sent nothing; it starts as a new incarnation."""
    journal = NodeJournal(folder, "a")
    journal.keep(update(1), "")
    journal.close()
    again = NodeJournal(folder, "a")
    assert again.load() is None
    again.save(record(), [])
    again.close()
    third = NodeJournal(folder, "a")
    loaded = third.load()
    assert loaded is not None
    assert loaded[1] == []
    third.close()


def test_what_was_written_survives_a_killed_process(folder: Path) -> None:
    """The files are copied while they are open, as a killed process leaves them."""
    journal = NodeJournal(folder, "a")
    journal.save(record(), [])
    journal.keep(update(1), "")
    shutil.copytree(folder / "state", folder / "copy" / "state")
    journal.close()
    copy = NodeJournal(folder / "copy", "a")
    loaded = copy.load()
    assert loaded is not None
    assert loaded[1] == [ReceivedMessage(update(1))]
    copy.close()


def test_the_file_stays_small(folder: Path) -> None:
    journal = NodeJournal(folder, "a")
    large = msgspec.structs.replace(update(1), content=bytes(100_000))
    for _ in range(200):
        journal.save(record(), [journal.keep(large, "")])
    # 20 MB were written; the log of SQLite is reused from 4 MB on.
    assert sum(path.stat().st_size for path in (folder / "state").iterdir()) < 6 << 20
    journal.close()


def test_a_snapshot_is_due_when_many_messages_arrived(folder: Path) -> None:
    journal = NodeJournal(folder, "a")
    numbers = [journal.keep(update(each), "") for each in range(1, MAX_INBOX_MESSAGES + 1)]
    assert not journal.is_full
    numbers.append(journal.keep(update(MAX_INBOX_MESSAGES + 1), ""))
    assert journal.is_full
    journal.save(record(), numbers)
    assert not journal.is_full
    journal.close()


def test_a_journal_in_use_is_refused(folder: Path) -> None:
    check_unused(folder, "a")
    journal = NodeJournal(folder, "a")
    for attempt in (NodeJournal, check_unused):
        with pytest.raises(SettingError, match=r"node a of .* is in use by another process; wait"):
            attempt(folder, "a")
    # Another node of that folder is not concerned.
    NodeJournal(folder, "b").close()
    journal.close()
    check_unused(folder, "a")
    NodeJournal(folder, "a").close()


@pytest.mark.parametrize("table", ["snapshot", "inbox"])
@pytest.mark.parametrize(
    "damage", ["substr(content, 1, 40)", "CAST(content || x'00' AS BLOB)", "zeroblob(9)", "7"]
)
def test_damaged_content_is_an_error_and_stays_as_it_is(
    folder: Path, table: str, damage: str
) -> None:
    journal = NodeJournal(folder, "a")
    journal.save(record(), [])
    journal.keep(update(1), "")
    journal.close()
    path = folder / "state" / "a.db"
    database = sqlite3.connect(path)
    with database:
        database.execute(f"UPDATE {table} SET content = {damage}")
    database.close()
    before = path.read_bytes()
    again = NodeJournal(folder, "a")
    what = "its snapshot" if table == "snapshot" else "message 1"
    with pytest.raises(DataError, match=rf"a\.db: {what} is damaged: its checksum is"):
        again.load()
    again.close()
    assert path.read_bytes() == before


def test_an_older_state_is_not_taken_for_the_last_one(folder: Path) -> None:
    """SQLite takes damage in its log for the end of it."""
    journal = NodeJournal(folder, "a")
    for each in range(1, 5):
        journal.save(record({"b": f"http://127.0.0.1:{each}"}), [])
    copy = Path(shutil.copytree(folder / "state", folder / "copy" / "state"))
    journal.close()
    (copy / "a.db-shm").unlink()
    log = copy / "a.db-wal"
    content = bytearray(log.read_bytes())
    content[-5000] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"a\.db is damaged: it has 4 writes, but 5 were on disk"
        ):
            NodeJournal(folder / "copy", "a")
        assert log.read_bytes() == content


def test_a_torn_file_is_an_error(folder: Path) -> None:
    journal = NodeJournal(folder, "a")
    journal.save(record(), [])
    journal.close()
    path = folder / "state" / "a.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"a\.db.* is damaged|a\.db is damaged"):
        NodeJournal(folder, "a").load()


def test_a_foreign_file_is_an_error(folder: Path) -> None:
    (folder / "state").mkdir()
    path = folder / "state" / "a.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match=r"a\.db is damaged: file is not a database"):
        NodeJournal(folder, "a")
    assert path.read_bytes() == b"not a database" * 100
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(DataError, match=r"a\.db is not the state of a node; use another folder"):
        NodeJournal(folder, "a")


def test_the_state_of_another_version_is_an_error(folder: Path) -> None:
    NodeJournal(folder, "a").close()
    other = sqlite3.connect(folder / "state" / "a.db")
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(
        DataError, match="has format version 9, but this version of Melisma reads 1"
    ):
        NodeJournal(folder, "a")


def test_a_record_of_other_types_is_an_error(folder: Path) -> None:
    journal = NodeJournal(folder, "a")
    wrong = msgspec.structs.replace(record(), start_unix_s="soon")
    journal.save(wrong, [])
    with pytest.raises(DataError, match="is not the state of a node as this version of Melisma"):
        journal.load()
    journal.close()

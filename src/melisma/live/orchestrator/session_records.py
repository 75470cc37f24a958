"""The sessions of learners in the journal, with which learners go on after a restart."""

from typing import Final

import msgspec

from melisma.live.orchestrator.mailbox import Mailbox, Mailboxes
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.protocol import JoinRequest

SESSION: Final = "session/"
"""The first part of the names of these records; the number of the learner follows."""


class SessionRecord(msgspec.Struct, frozen=True):
    """What outlives this process of a mailbox; see `Mailbox`."""

    name: str
    session: str | None
    request: JoinRequest | None
    earlier_request: JoinRequest | None
    joined: bool
    left: bool
    silent: bool
    fingerprint: str | None
    host: str | None
    conflict: str
    departure: str
    samples_per_s: float | None


FIELDS: Final = SessionRecord.__struct_fields__


def put_session(journal: RunJournal, number: int, mailbox: Mailbox) -> None:
    """Put the session of a learner into the journal, with the next step."""
    record = SessionRecord(**{name: getattr(mailbox, name) for name in FIELDS})
    journal.put(f"{SESSION}{number:09}", msgspec.json.encode(record))


def restore_sessions(journal: RunJournal, mailboxes: Mailboxes, *, alive: bool) -> None:
    """Open the mailboxes of all learners again, with the same numbers.

    Those whose sessions are not `alive` any more have to register again.
    """
    for _, content in journal.records(SESSION):
        record = msgspec.json.decode(content, type=SessionRecord)
        mailbox = mailboxes[mailboxes.open(record.name)]
        for name in FIELDS if alive else ("fingerprint", "host"):
            setattr(mailbox, name, getattr(record, name))

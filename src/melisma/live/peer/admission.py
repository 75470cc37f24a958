"""Admits nodes that prove to know the token of the group, and proves the same to others.

See `melisma.peer.proofs` for the exchange. Nothing but a random number is sent to an address that
has not proved itself.
"""

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import msgspec

from melisma import axon
from melisma.axon.address import Address
from melisma.axon.server.authentication import ANONYMOUS, OWNER, Credentials
from melisma.errors import SettingError, UnauthorizedError
from melisma.live.state_folder import file_lock, peers_folder, write_state
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import (
    NONCE_BYTES,
    Meeting,
    NodeKey,
    group_secret,
    is_signed,
    proofs_match,
)

MAX_MEETINGS = 1024
MEETING_S = 30.0
"""The time in which a caller must answer with its own proof."""
IDENTIFY_S = 2.0
"""The time that a node is given to identify itself."""
NOT_ADMITTED = "this node has not admitted the sender: prove the token of the group first"


class Introduction(msgspec.Struct, frozen=True):
    """The answer of a node to a nonce."""

    name: str
    incarnation: int
    key: str
    nonce: bytes
    proof: bytes
    signature: bytes


@dataclass
class ControlToken:
    """Names the process that started a node as its owner; all other callers are anonymous."""

    token: str | None
    open_to_all: bool

    def check(
        self,
        credentials: Credentials,
        call_id: str = "",  # noqa: ARG002 - an interface of Axon
        *,
        starts_call: bool = True,  # noqa: ARG002
    ) -> str:
        """Return the name of the caller."""
        if self.open_to_all:
            return OWNER
        sent, own = credentials.token or "", self.token
        matches = own is not None and secrets.compare_digest(sent.encode(), own.encode())
        return OWNER if matches else ANONYMOUS


@dataclass
class Admission:
    """The keys that have proved the group's token to this node, and its own proofs."""

    name: str
    token: str | None
    key: NodeKey
    keyring: KeyRing
    incarnation: int = 0
    fingerprint: str = ""
    _admitted: dict[str, str] = field(default_factory=dict)
    _meetings: "OrderedDict[bytes, tuple[Meeting, float]]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def name_of(self, key: str) -> str | None:
        """Return the name under which a key was admitted; None if it was not."""
        return self._admitted.get(key)

    # As the node that is called.

    def introduce(self, nonce: bytes) -> Introduction:
        """Answer a nonce with a nonce, and prove to know the token."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {len(nonce)} bytes; expected {NONCE_BYTES}")
        own = secrets.token_bytes(NONCE_BYTES)
        meeting = Meeting(
            nonce, own, self.fingerprint, self.name, self.key.public, self.incarnation
        )
        with self._lock:
            self._meetings[own] = meeting, time.monotonic() + MEETING_S
            while len(self._meetings) > MAX_MEETINGS:
                self._meetings.popitem(last=False)
        proof = meeting.node_proof(group_secret(self.token))
        signature = self.key.sign(proof)
        return Introduction(self.name, self.incarnation, self.key.public, own, proof, signature)

    def admit(self, nonce: bytes, name: str, key: str, proof: bytes, signature: bytes) -> str:
        """Admit a caller that proves the token for its name and key; return why not, if refused."""
        with self._lock:
            meeting, until_s = self._meetings.pop(nonce, (None, 0.0))
        if meeting is None or time.monotonic() > until_s:
            raise UnauthorizedError("the proof is late or was used before: ask for a new nonce")
        expected = meeting.caller_proof(group_secret(self.token), name, key)
        if not proofs_match(proof, expected):
            raise UnauthorizedError("the proof is wrong: use the same token for all nodes")
        if not is_signed(key, proof, signature):
            return "the signature was not made with the key of the node"
        if refusal := self.keyring.bind(name, key):
            return refusal
        self._admitted[key] = name
        return ""

    # As the caller.

    def ask(self, remote: axon.Remote, address: str, deadline_s: float) -> tuple[Meeting, str]:
        """Let the node at an address introduce itself; return its facts if it proved the token."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        answer = parse_introduction(remote(deadline_s=deadline_s).introduce(nonce))
        meeting = Meeting(
            nonce,
            answer.nonce,
            Address.parse(address).fingerprint or "",
            answer.name,
            answer.key,
            answer.incarnation,
        )
        proved = proofs_match(answer.proof, meeting.node_proof(group_secret(self.token)))
        if not proved or not is_signed(answer.key, answer.proof, answer.signature):
            raise UnauthorizedError(
                f"the node at {Address.parse(address).without_token()} did not prove to know the "
                "token of this group: use the same token for all nodes, and check the address"
            )
        return meeting, answer.name

    def meet(self, remote: axon.Remote, address: str, to: str, deadline_s: float) -> str:
        """Exchange proofs with the node `to`; return why it refused, or an empty string."""
        meeting, name = self.ask(remote, address, deadline_s)
        where = Address.parse(address).without_token()
        if name != to:
            raise UnauthorizedError(f"the node at {where} is {name}, not {to}: check the address")
        if refusal := self.keyring.bind(name, meeting.node_key):
            raise UnauthorizedError(
                f"the node at {where}: {refusal}; if it has a new key, update --keys or restart "
                "this node"
            )
        own = self.key.public
        proof = meeting.caller_proof(group_secret(self.token), self.name, own)
        admit = remote(deadline_s=deadline_s).admit
        return str(admit(meeting.node_nonce, self.name, own, proof, self.key.sign(proof)))


def load_node_key(name: str) -> NodeKey:
    """Read the key of this user's node of that name; create it if it is missing."""
    path = peers_folder() / f"{name}.key"
    with file_lock(path):
        if not path.exists():
            write_state(path, NodeKey.create().to_text())
    try:
        return NodeKey.from_text(path.read_text(encoding="utf-8").strip())
    except ValueError as error:
        raise SettingError(
            f"{path} does not contain the key of a node: delete the file to create a new one"
        ) from error


def parse_introduction(answer: Any) -> Introduction:
    """Return an introduction; raise `UnauthorizedError` for anything else."""
    try:
        return msgspec.convert(answer, Introduction)
    except msgspec.ValidationError as error:
        raise UnauthorizedError(f"not the answer of a node ({error}): check the address") from None


def is_protected(address: str) -> bool:
    """Return whether an address is that of this machine, or uses TLS with a fingerprint."""
    parsed = Address.parse(address)
    return bool(parsed.fingerprint) or is_loopback(parsed.host)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, and not reached by others."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

"""A malicious node, in this process or, as a script, in a process of its own.

The first line of standard input is an `Attack` in JSON. Each line of output is a JSON value; the
last one is the result. An attack that lasts ends when standard input is closed.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec

from melisma import axon
from melisma.axon.server.authentication import ANONYMOUS, Credentials
from melisma.errors import MelismaError
from melisma.live.peer.admission import Admission, ControlToken
from melisma.live.peer.messenger import Messenger
from melisma.live.peer.network_events import MessageReceived
from melisma.peer import messages
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import NodeKey, content_to_sign

TOKEN = "secret-of-the-group"
FAR = 10**12
"""A number of incarnations ahead: 30 years."""
GREETINGS = 600


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """One attack; `to` is the node that is attacked, at `address`."""

    kind: str
    to: str = ""
    address: str = ""
    victim: str = ""
    """The node in whose name the attacker speaks."""
    private_key: str = ""
    compatibility: dict[str, str] = msgspec.field(default_factory=dict)
    board: str | None = None
    port: int = 0


class Member:
    """A malicious node that knows the token: it answers, and sends what a test asks for."""

    def __init__(self, name: str, stack: ExitStack, key: str = "", port: int = 0) -> None:
        own = NodeKey.from_text(key) if key else NodeKey.create()
        self.admission = Admission(name, TOKEN, own, KeyRing(name), incarnation=1)
        self.messenger = Messenger(self.admission, 5.0, {})
        worker = axon.Worker(port=port, authenticator=ControlToken(None, open_to_all=False))
        worker.expose(self.messenger, ["introduce", "admit", "deliver"], name="")
        self.address = stack.enter_context(worker.start())
        self._stack = stack
        self._remotes: dict[str, axon.Remote] = {}

    def meet(self, to: str, address: str) -> str:
        """Prove the token to a node; return why it refuses."""
        remote = self._remotes[to] = self._stack.enter_context(axon.connect(address))
        return self.admission.meet(remote, address, to, 10.0)

    def meet_when_listening(self, to: str, address: str) -> None:
        """Meet a node as soon as it listens."""
        while True:
            try:
                assert self.meet(to, address) == ""
            except MelismaError:
                time.sleep(0.05)
            else:
                return

    def send(self, to: str, message: messages.Message) -> str:
        content, key = msgspec.msgpack.encode(message), self.admission.key
        signature = key.sign(content_to_sign(to, self.address, content))
        return str(self._remotes[to].deliver(content, self.address, key.public, signature))

    def wait_for(self, kind: type[messages.PeerMessage]) -> Any:
        """Return the next message of that type."""
        while True:
            event = self.messenger.events.get()
            self.messenger.record_handled(event)
            if isinstance(event, MessageReceived) and isinstance(event.message, kind):
                return event.message

    def accept(self, to: str, hello: messages.Hello) -> None:
        """Accept a greeting, and claim to train."""
        name = self.admission.name
        accepted = messages.Accepted(
            sender=name,
            incarnation=1,
            to_incarnation=hello.incarnation,
            degree=1,
            training=False,
            updates_done=0,
            steps=0,
            model=b"",
        )
        started = messages.Started(sender=name, incarnation=1, updates_done=0, model=b"")
        assert [self.send(to, accepted), self.send(to, started)] == ["", ""]


class Recorder:
    """Records the credentials of callers."""

    def __init__(self) -> None:
        self.credentials: list[Credentials] = []

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        self.credentials.append(credentials)
        return ANONYMOUS


class Impostor:
    """Passes on the proof of the real node, and records everything that it is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def introduce(self, nonce: bytes) -> Any:
        self.calls.append(("introduce", nonce))
        with axon.connect(self.real_address()) as remote:
            return remote.introduce(nonce)

    def admit(self, *arguments: Any) -> str:
        self.calls.append(("admit", *arguments))
        return ""

    def deliver(self, *arguments: Any) -> str:
        self.calls.append(("deliver", *arguments))
        return ""

    def real_address(self) -> str:
        """Return the address of the real node."""
        raise NotImplementedError


def forge(attack: Attack, stack: ExitStack) -> dict[str, int]:
    """Send messages in the name of the victim, from a far later incarnation; ask for its name."""
    member, thief = Member("x", stack), Member(attack.victim, stack)
    member.meet_when_listening(attack.to, attack.address)
    later = time.time_ns() // 10**6 + FAR
    ids: dict[str, Any] = {"sender": attack.victim, "incarnation": later}
    forged: list[messages.Message] = [
        messages.Heartbeat(**ids),
        messages.Hello(**ids, compatibility=attack.compatibility, degree=1),
        messages.Goodbye(**ids, last_update=0),
    ]
    answers = Counter(member.send(attack.to, message) for message in forged for _ in range(20))
    answers[thief.meet(attack.to, attack.address)] += 1
    # A message of the attacker itself would use up all later incarnations of its own name.
    own = messages.Hello(
        sender="x", incarnation=2**53, compatibility=attack.compatibility, degree=1
    )
    answers[member.send(attack.to, own)] += 1
    return dict(answers)


def stay_silent(attack: Attack, stack: ExitStack) -> int:
    """Answer as a neighbour, send heartbeats that claim to wait, and no update."""
    member = Member("x", stack, attack.private_key, attack.port)
    hello = member.wait_for(messages.Hello)
    member.meet_when_listening(attack.to, attack.address)
    member.accept(attack.to, hello)
    heartbeats = 0
    heartbeat = messages.Heartbeat(sender="x", incarnation=1, waiting=True)
    while True:
        try:
            member.send(attack.to, heartbeat)
        except MelismaError:
            return heartbeats
        heartbeats += 1
        time.sleep(0.05)


def greet(attack: Attack, stack: ExitStack) -> dict[str, int]:
    """Greet under made-up names; half of those that are admitted fit the group."""
    Member("x", stack).meet_when_listening(attack.to, attack.address)
    remote = stack.enter_context(axon.connect(attack.address))

    def greet_as(index: int) -> str:
        name, here = f"x{index}", "http://127.0.0.1:1"
        sender = Admission(name, TOKEN, NodeKey.create(), KeyRing(name), incarnation=1)
        if refusal := sender.meet(remote, attack.address, attack.to, 30.0):
            return refusal
        compatibility = attack.compatibility if index % 2 else {}
        hello = messages.Hello(
            sender=name, incarnation=1, compatibility=compatibility, degree=10**6
        )
        content = msgspec.msgpack.encode(hello)
        signature = sender.key.sign(content_to_sign(attack.to, here, content))
        return str(remote.deliver(content, here, sender.key.public, signature))

    with ThreadPoolExecutor(4) as pool:
        return dict(Counter(pool.map(greet_as, range(GREETINGS))))


class AnnouncedImpostor(Impostor):
    """Waits until the real node is announced too, and says when it is called."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self._attack, self.own_name = attack, f"{attack.victim}.99999999999999"

    def real_address(self) -> str:
        """Return the address of the real node."""
        if len(self.calls) == 1:
            write("called")
        prefix, board = f"{self._attack.victim}.", self._attack.board
        while True:
            for each in axon.workers(board) if board is not None else axon.discover(1.0):
                if each.name.startswith(prefix) and each.name != self.own_name:
                    return each.address
            time.sleep(0.1)


def pretend(attack: Attack, stack: ExitStack) -> dict[str, Any]:
    """Announce a worker under the name of the victim, later than any real incarnation."""
    impostor, recorder = AnnouncedImpostor(attack), Recorder()
    worker = axon.Worker(
        port=0,
        name=impostor.own_name,
        tls="impostor.pem",
        authenticator=recorder,
        board=attack.board,
        announce=attack.board is None,
    )
    worker.expose(impostor, ["introduce", "admit", "deliver"], name="")
    stack.enter_context(worker.start())
    write("announced")
    sys.stdin.read()
    return {
        "calls": sorted({call[0] for call in impostor.calls}),
        "nonce_bytes": sorted({len(call[1]) for call in impostor.calls}),
        "authorizations": sorted({str(each.authorization) for each in recorder.credentials}),
    }


def write(value: Any) -> None:
    """Write a line of output."""
    print(msgspec.json.encode(value).decode(), flush=True)


ATTACKS = {"forge": forge, "stay_silent": stay_silent, "greet": greet, "pretend": pretend}


def main() -> None:
    """Carry out the attack of the first line of standard input."""
    attack = msgspec.json.decode(sys.stdin.readline(), type=Attack)
    with ExitStack() as stack:
        write(ATTACKS[attack.kind](attack, stack))


if __name__ == "__main__":
    main()

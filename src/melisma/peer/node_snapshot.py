"""The state of a node as bytes, and how a node resumes from it.

The rule for drivers: before a message leaves, the state that it depends on is on disk
(`needs_snapshot`), and so is each message that was received before it is acknowledged. A node that
is stopped at any instant then resumes from its last snapshot and the messages that arrived since.
It repeats at most steps of which no other node knows, sends again what may not have arrived, and
applies every update once: its neighbours see a slow node with the same incarnation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
import numpy as np

from melisma.errors import DataError
from melisma.learning.stepper import Stepper, StepperState
from melisma.peer import commands, messages, notices
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs, OwnState
from melisma.peer.sent_messages import SentMessages

CHECKSUM_BYTES: Final = 4
DECISIONS: Final = (
    commands.Finish,
    notices.TrainingStarted,
    notices.NeighbourLost,
    notices.NeighbourStalled,
    notices.IncarnationRefuted,
)
Kind = TypeVar("Kind", bound=msgspec.Struct)


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message that arrived, signed with `key`."""

    message: messages.Message
    key: str = ""


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node between two steps; times are those of the node.

    `sent` are messages that are not acknowledged, with the contents of updates in `contents`: an
    update has the same for all neighbours. `own` is the state of the algorithm. In `gradient_sum`
    and `own`, arrays of zeros are empty.
    """

    name: str
    incarnation: int
    restarts: int
    refutations: int
    keys: dict[str, str]
    neighbours: list[Neighbour]
    guard: dict[str, list[float]]
    own: OwnState
    update_number: int
    steps: int
    own_updates: int
    now_s: float
    started_s: float
    round_s: float
    blocked_since_s: float | None
    started: bool
    finished: bool
    said_goodbye: bool
    offers: list[messages.Accepted]
    early_updates: list[messages.Update]
    computing: commands.TakeSteps | None
    steps_left: int
    trained: StepperState
    vector: Vector
    gradient_sum: Vector
    sent: list[tuple[commands.Send, int | None]]
    contents: list[bytes]


def needs_snapshot(outputs: Outputs) -> bool:
    """Return whether outputs send more than heartbeats, or tell of a decision made at a time.

    The driver carries them out when a snapshot that was taken after them is on disk. What messages
    did to the state follows from the inbox; what the time did does not.
    """
    return any(
        isinstance(output, DECISIONS)
        or (
            isinstance(output, commands.Send) and not isinstance(output.message, messages.Heartbeat)
        )
        for output in outputs
    )


def take_snapshot(node: Node, steps: Stepper, steps_left: int, sent: SentMessages) -> NodeSnapshot:
    """Return the state of a node; arrays are not copied. `steps_left` are those of its round."""
    identity, membership = node.identity, node.membership
    own = node.own_state()
    vectors = {name: _shorten(vector) for name, vector in own.vectors.items()}
    unacknowledged, contents = sent.without_contents()
    return NodeSnapshot(
        name=identity.name,
        incarnation=identity.incarnation,
        restarts=identity.restarts,
        refutations=membership.refutations,
        keys=membership.keyring.keys(),
        neighbours=[*node.neighbours.values()],
        guard=node.guard.norms(),
        own=msgspec.structs.replace(own, vectors=vectors),
        update_number=node.update_number,
        steps=node.steps,
        own_updates=node.own_updates,
        now_s=node.now_s,
        started_s=node.started_s,
        round_s=node.round_s,
        blocked_since_s=node.blocked_since_s,
        started=node.started,
        finished=node.finished,
        said_goodbye=node.said_goodbye,
        offers=node.offers,
        early_updates=node.early_updates,
        computing=node.computing,
        steps_left=steps_left,
        trained=steps.state(),
        vector=node.model.vector,
        gradient_sum=_shorten(node.model.gradient_sum),
        sent=unacknowledged,
        contents=contents,
    )


def encode(snapshot: msgspec.Struct) -> bytes:
    """Return a struct with arrays as bytes, after their checksum."""
    content = msgspec.msgpack.encode(snapshot, enc_hook=_encode_array)
    return crc32(content).to_bytes(CHECKSUM_BYTES, "big") + content


def decode(content: bytes, kind: type[Kind], source: str) -> Kind:
    """Return the struct that was encoded; raise `DataError` that names `source` if damaged."""
    checksum, content = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
    if crc32(content).to_bytes(CHECKSUM_BYTES, "big") != checksum:
        raise DataError(
            f"{source} is damaged: its checksum is {crc32(content):08x}, not {checksum.hex()}; "
            "restore it from a copy, or start the node anew in another folder"
        )
    try:
        return msgspec.msgpack.decode(content, type=kind, dec_hook=_decode_array)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(
            f"{source} is not the state of a node as this version of Melisma writes it: {error}; "
            "resume with the version that wrote it, or start the node anew in another folder"
        ) from error


def restore(node: Node, steps: Stepper, snapshot: NodeSnapshot) -> SentMessages:
    """Set a new node and its model to a state; return its messages that are not acknowledged.

    Raise `DataError` if the state is that of another node or model.
    """
    _check(node, snapshot)
    membership = node.membership
    membership.identity = replace(
        node.identity, incarnation=snapshot.incarnation, restarts=snapshot.restarts
    )
    membership.refutations = snapshot.refutations
    membership.keyring.add(snapshot.keys)
    node.neighbours.clear()
    node.neighbours.update((neighbour.name, neighbour) for neighbour in snapshot.neighbours)
    node.guard.restore(snapshot.guard)
    for name in (
        *("update_number", "steps", "own_updates", "now_s", "started_s", "round_s"),
        *("blocked_since_s", "started", "finished", "said_goodbye", "computing"),
    ):
        setattr(node, name, getattr(snapshot, name))
    node.offers, node.early_updates = [*snapshot.offers], [*snapshot.early_updates]
    node.model.vector[:] = snapshot.vector
    size = snapshot.vector.size
    node.model.gradient_sum[:] = _lengthen(snapshot.gradient_sum, size)
    vectors = {name: _lengthen(vector, size) for name, vector in snapshot.own.vectors.items()}
    node.restore_own(msgspec.structs.replace(snapshot.own, vectors=vectors))
    steps.restore(snapshot.trained)
    return SentMessages.with_contents(snapshot.sent, snapshot.contents)


def resume(node: Node, at_s: float, inbox: Iterable[ReceivedMessage]) -> Outputs:
    """Continue as the next restart of a restored node, with the messages that arrived since."""
    identity = node.identity
    node.membership.identity = replace(identity, restarts=identity.restarts + 1)
    outputs: Outputs = []
    for received in inbox:
        outputs += node.on_message(at_s, received.message, received.key)
    return outputs + node.resume(at_s)


def _check(node: Node, snapshot: NodeSnapshot) -> None:
    """Raise `DataError` unless a snapshot is one of this node, with arrays of the right sizes."""
    if snapshot.name != node.identity.name:
        raise DataError(
            f"this is the state of node {snapshot.name}, not of {node.identity.name}; use the "
            "folder of this node"
        )
    known, found_names = node.own_state().vectors.keys(), snapshot.own.vectors.keys()
    if known != found_names or any(
        index is not None and index >= len(snapshot.contents) for _, index in snapshot.sent
    ):
        raise DataError(
            f"this is the state of another algorithm, with {', '.join(found_names) or 'no arrays'}"
            f"; expected {', '.join(known) or 'no arrays'}: use the options of the first start"
        )
    size = node.model.vector.size
    sizes = {f"the {name} of the algorithm": it.size for name, it in _arrays(snapshot).items()}
    for what, found in {"the model": snapshot.vector.size, **sizes}.items():
        if found != size:
            raise DataError(
                f"{what} has {found:,} numbers in the state of {snapshot.name}, but the model has "
                f"{size:,}; use the model with which the state was written, or a new folder"
            )


def _arrays(snapshot: NodeSnapshot) -> Mapping[str, Vector]:
    """Return the arrays of a snapshot, other than the model, that are as long as the model."""
    arrays = {**snapshot.own.vectors, "sum of gradients": snapshot.gradient_sum}
    arrays = {name: vector for name, vector in arrays.items() if vector.size}
    for each in snapshot.neighbours:
        if each.model is not None:
            arrays[f"model of {each.name}"] = each.model
        arrays |= {f"update {number} of {each.name}": it for number, it in each.pending.items()}
    return arrays


def _shorten(vector: Vector) -> Vector:
    """Return an empty array for zeros, which take time to write."""
    return vector if vector.any() else vector[:0]


def _lengthen(vector: Vector, size: int) -> Vector:
    """Return the zeros that `_shorten` left out."""
    return vector if vector.size else np.zeros(size, np.float32)


def _encode_array(value: Any) -> bytes:
    return bytes(np.asarray(value, "<f4").tobytes())


def _decode_array(_: type, content: bytes) -> Vector:
    return np.frombuffer(content, "<f4").astype(np.float32)

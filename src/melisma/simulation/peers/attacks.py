"""Attacks on nodes, as text beside faults, and drawn at random.

::

    silence 1 at 0.3   from then on node 1 answers, but sends nothing but heartbeats
    forge 2 at 0.5     the neighbours of node 2 receive messages in its name, of a far later
                       incarnation, that are signed with another key
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from melisma.errors import SettingError
from melisma.peer import messages
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import Fault, parse_faults

AttackKind = Literal["silence", "forge"]
KEY = "key of {}"
"""The key of the node of that name, in all its incarnations."""
FORGED_KEY = "a key that no node has"
FORGED_JUMP = 10**6
_PATTERN = re.compile(
    r"(?P<kind>silence|forge) (?P<node>[^ ,]+) at (?P<at_s>[0-9.]+(?:e[+-]?[0-9]+)?)"
)


@dataclass(frozen=True)
class Attack:
    """One attack from a time on; nodes go by number."""

    kind: AttackKind
    node: int
    at_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.node} at {self.at_s:.6g}"


PeerFault = Fault | Attack


def parse_faults_and_attacks(text: str, nodes: FaultTargets | int) -> tuple[PeerFault, ...]:
    """Parse faults and attacks separated by `;`; raise `SettingError` for an invalid one.

    `nodes` are those that they may name, or their number.
    """
    targets = FaultTargets(nodes) if isinstance(nodes, int) else nodes
    return tuple(_parse(part.strip(), targets) for part in text.split(";") if part.strip())


def _parse(text: str, nodes: FaultTargets) -> PeerFault:
    match = _PATTERN.fullmatch(text)
    if match is None:
        (fault,) = parse_faults(text, nodes)
        if fault.of_orchestrator:
            raise SettingError(f"fault {text!r}: peers have no orchestrator; name nodes")
        return fault
    kind: AttackKind = "silence" if match["kind"] == "silence" else "forge"
    node, *others = nodes.find(text, match["node"])
    if others:
        raise SettingError(f"fault {text!r}: {match['node']} are several; expected one node")
    try:
        return Attack(kind, node, float(match["at_s"]))
    except ValueError:
        raise SettingError(f"fault {text!r}: invalid number") from None


def random_attacks(rng: np.random.Generator, nodes: int, until_s: float) -> tuple[Attack, ...]:
    """Draw an attack of each kind with probability 1/4."""
    kinds: tuple[AttackKind, ...] = ("silence", "forge")
    return tuple(
        Attack(kind, int(rng.integers(nodes)), float(f"{rng.uniform(0, until_s):.4g}"))
        for kind in kinds
        if rng.random() < 0.25
    )


def forged_messages(name: str, incarnation: int) -> Iterator[messages.Message]:
    """Yield messages in the name of a node that would lock it out if they were believed."""
    later = incarnation + FORGED_JUMP
    yield messages.Heartbeat(sender=name, incarnation=later)
    yield messages.Hello(sender=name, incarnation=later, compatibility={}, degree=1)
    yield messages.Goodbye(sender=name, incarnation=incarnation, last_update=0)

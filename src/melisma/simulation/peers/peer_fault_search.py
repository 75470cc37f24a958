"""Search for fault schedules that break training without an orchestrator, and shrink them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from melisma.errors import MelismaError
from melisma.peer.group import Peers
from melisma.simulation.fault_search import shrink
from melisma.simulation.peers.attacks import PeerFault
from melisma.simulation.peers.peer_simulation import (
    PeerOptions,
    parse_peer_faults,
    simulate_peers,
)


@dataclass(frozen=True)
class PeerFailure:
    """A seed, the fewest faults and attacks that violate an invariant, and the violation."""

    seed: int
    faults: tuple[PeerFault, ...]
    violation: str


def search_peer_faults(
    peers: Peers, options: PeerOptions, seeds: range
) -> Iterator[PeerFailure | None]:
    """Simulate a random fault schedule for each seed; yield the shrunk failure, or None."""
    for seed in seeds:
        delays = msgspec.structs.replace(options.delays, seed=seed)
        seeded = replace(options, work="timing", delays=delays)
        faults = parse_peer_faults(seed, peers, delays)
        failed = find_peer_violation(peers, seeded, faults)
        yield _shrink(peers, seeded, seed, faults) if failed else None


def find_peer_violation(peers: Peers, options: PeerOptions, faults: tuple[PeerFault, ...]) -> str:
    """Return the error that a fault schedule leads to; empty if there is none."""
    try:
        report = simulate_peers(peers, replace(options, faults="; ".join(map(str, faults))))
    except MelismaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - any exception of a state machine is a defect
        return f"{type(error).__name__}: {error}"
    failed = [node for node in report.nodes if node.outcome not in ("finished", "left")]
    return f"{failed[0].name} is {failed[0].outcome}: {failed[0].reason}" if failed else ""


def _shrink(
    peers: Peers, options: PeerOptions, seed: int, faults: tuple[PeerFault, ...]
) -> PeerFailure:
    fewest = tuple(shrink(faults, lambda subset: bool(find_peer_violation(peers, options, subset))))
    return PeerFailure(seed, fewest, find_peer_violation(peers, options, fewest))

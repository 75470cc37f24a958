"""Many schedules of faults for nodes without an orchestrator; what breaks is made short."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from melisma.errors import MelismaError
from melisma.peer.group import Peers
from melisma.simulation.fault_search import Failure, shrink
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.peers.peer_simulation import (
    PeerOptions,
    parse_peer_faults,
    simulate_peers,
)


def search_peer_faults(
    peers: Peers, options: PeerOptions, seeds: range
) -> Iterator[Failure | None]:
    """A schedule of faults and delays for each seed; where it breaks something, the shortest."""
    for seed in seeds:
        delays = msgspec.structs.replace(options.delays, seed=seed)
        mine = replace(options, work="timing", delays=delays)
        faults = parse_peer_faults(seed, peers, delays)
        yield _shortest(peers, mine, seed, faults) if _broken(peers, mine, faults) else None


def _broken(peers: Peers, options: PeerOptions, faults: tuple[Fault, ...]) -> str:
    """What goes wrong that must not, or nothing."""
    try:
        report = simulate_peers(peers, replace(options, faults=format_faults(faults)))
    except MelismaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is a finding
        return f"{type(error).__name__}: {error}"
    failed = [node for node in report.nodes if node.outcome not in ("done", "gone")]
    return f"{failed[0].name} is {failed[0].outcome}: {failed[0].reason}" if failed else ""


def _shortest(peers: Peers, options: PeerOptions, seed: int, faults: tuple[Fault, ...]) -> Failure:
    fewest = tuple(shrink(faults, lambda some: bool(_broken(peers, options, some))))
    return Failure(seed, fewest, _broken(peers, options, fewest))

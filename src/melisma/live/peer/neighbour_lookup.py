"""Addresses of a neighbour that announced itself on the notice board or the local network.

Anyone may announce any name: a neighbour proves its identity at the address.
"""

from collections.abc import Mapping

from melisma import axon
from melisma.errors import MelismaError
from melisma.live.peer.node_config import NodeConfig

DISCOVER_S = 1.0
"""The time to wait for answers on the local network."""


def look_up_addresses(config: NodeConfig, name: str) -> list[str]:
    """Return announced addresses of a neighbour, as far as the configuration allows."""
    try:
        if config.board is not None:
            listed = axon.workers(config.board)
            return _latest_addresses(name, {each.name: each.address for each in listed})
        if config.discover:
            discovered = axon.discover(DISCOVER_S)
            return _latest_addresses(name, {each.name: each.address for each in discovered})
    except MelismaError:
        return []
    return []


def _latest_addresses(name: str, addresses: Mapping[str, str]) -> list[str]:
    """Return the addresses that are announced for a node, of its last incarnations first."""
    found = [
        (int(incarnation), worker)
        for worker in addresses
        for node, _, incarnation in [worker.rpartition(".")]
        if node == name and incarnation.isdecimal()
    ]
    return [addresses[worker] for _, worker in sorted(found, reverse=True)]

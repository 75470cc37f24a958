"""A group of nodes: the settings that they share, their topology and their data."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.array_types import Ints
from melisma.fleet.rng import generator
from melisma.fleet.task import PartitionSettings, Task
from melisma.learning.compression import Compression, compression_for
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import partition_by_sizes
from melisma.learning.stepper import Stepper
from melisma.peer.aet_sgd import AetNode
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.event_triggered_sgd import EventTriggeredNode
from melisma.peer.gossip_sgd import GossipNode
from melisma.peer.guard import GuardMode
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.local_sgd import LocalNode
from melisma.peer.node import Node
from melisma.peer.topologies import topology_for
from melisma.peer.topology import Topology

# Names are used in file names and addresses.
NODE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,31}", re.ASCII)


@dataclass(frozen=True)
class PeerSettings:
    """The settings that all nodes share.

    Each node takes `iterations` steps, times its share. A neighbour that does not answer for
    `patience_s` is given up. `guard` bounds updates: "clip", "drop" or "off".
    """

    task: Task
    algorithm: Algorithm
    iterations: int
    compression: str = "none"
    patience_s: float = 10.0
    guard: GuardMode = "clip"

    def with_share(self, share: float) -> "PeerSettings":
        """Return the settings of a node that is `share` times as fast as the mean of all."""
        if share == 1.0:
            return self
        if not isinstance(self.algorithm, AetSgd | LocalSgd):
            name = self.algorithm.__struct_config__.tag
            raise SettingError(f"algorithm {name} has no shares; use aet or local, or equal shares")
        algorithm = msgspec.structs.replace(self.algorithm, share=share)
        return replace(self, algorithm=algorithm, iterations=max(1, round(self.iterations * share)))

    def create_node(
        self,
        name: str,
        incarnation: int,
        neighbours: tuple[str, ...],
        steps: Stepper,
        keys: Mapping[str, str] | None = None,
    ) -> Node:
        """Create a node that trains the model of `steps`; `keys` of neighbours may be known."""
        compression = compression_for(self.compression)
        compatibility = {
            "model": f"{self.task.model} of {steps.vector.size:,} parameters",
            "checksum of initial parameters (set by seed)": f"{crc32(steps.vector.tobytes()):08x}",
            "algorithm": str(self.algorithm.__struct_config__.tag),
            "compression": compression.name,
        }
        identity = NodeIdentity(
            name,
            incarnation,
            self.iterations,
            compatibility,
            self.patience_s,
            getattr(self.algorithm, "share", 1.0),
            self.guard,
            dict(keys or {}),
        )
        model = Model(steps.vector, steps.gradient_sum)
        return create_node(identity, neighbours, model, compression, self.algorithm)


@dataclass(frozen=True)
class Peers:
    """A group of nodes on a topology; `shares` are in the order of nodes, or empty if equal."""

    settings: PeerSettings
    topology: Topology
    topology_name: str
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in self.topology.names:
            check_node_name(name)
        count = len(self.topology.names)
        if self.shares and len(self.shares) != count:
            raise SettingError(f"{len(self.shares)} shares for {count} nodes; expected one each")
        for name, settings in zip(self.topology.names, self.node_settings, strict=True):
            if settings.iterations < 1:
                raise SettingError(f"{name} has {settings.iterations} steps; expected at least one")

    @property
    def node_settings(self) -> list[PeerSettings]:
        """The settings of each node: its share of the steps, in rounds of its own size."""
        count = len(self.topology.names)
        shares = normalise_shares([*self.shares]) if self.shares else [1.0] * count
        return [self.settings.with_share(share) for share in shares]


def peers_for(  # noqa: PLR0913 - each is a setting of its own
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    iterations: int = 1000,
    nodes: int = 5,
    topology: str = "ring",
    shares: Sequence[float] = (),
    compression: str = "none",
    patience_s: float = 10.0,
    guard: GuardMode = "clip",
) -> Peers:
    """Create a group of nodes that train a task; its deadline and scheme are ignored.

    The task's optimiser must be plain SGD; the learning rate is that of the algorithm, which is
    AET-SGD by default.
    """
    settings = PeerSettings(task, algorithm or AetSgd(), iterations, compression, patience_s, guard)
    return Peers(settings, topology_for(topology, nodes, task.seed), topology, tuple(shares))


def create_node(
    identity: NodeIdentity,
    neighbours: Iterable[str],
    model: Model,
    compression: Compression,
    settings: Algorithm,
) -> Node:
    """Create the state machine of an algorithm."""
    match settings:
        case AetSgd():
            return AetNode(identity, neighbours, model, compression, settings)
        case LocalSgd():
            return LocalNode(identity, neighbours, model, compression, settings)
        case EventTriggeredSgd():
            return EventTriggeredNode(identity, neighbours, model, compression, settings)
        case GossipSgd():
            return GossipNode(identity, neighbours, model, compression, settings)


def check_node_name(name: str) -> None:
    """Raise `SettingError` unless `name` is valid for a node."""
    if not NODE_NAME.fullmatch(name):
        raise SettingError(
            f"{name!r:.60} is not a name for a node; expected up to 32 letters, digits, . _ -, the "
            "first of them not . or -"
        )


def normalise_shares(speeds: list[float]) -> list[float]:
    """Scale speeds to a mean of 1."""
    mean = float(np.mean(speeds))
    return [speed / mean for speed in speeds]


def partition_samples(task: Task, labels: NDArray[Any], nodes: int) -> list[Ints]:
    """Divide all samples into disjoint parts of equal size, one per node."""
    sizes = np.full(nodes, len(labels) // nodes) + (np.arange(nodes) < len(labels) % nodes)
    if not sizes.all():
        raise SettingError(f"{len(labels)} samples are too few for {nodes} nodes")
    rng = generator(task.seed, "partition")
    return partition_by_sizes(labels, sizes, task.partition or PartitionSettings(), rng)


def take_samples(split: Split, samples: Ints) -> Split:
    """Return the samples of these indices."""
    return Split(split.samples[samples], split.labels[samples])

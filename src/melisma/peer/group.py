"""A group of nodes: what all of them train, and what each of them is made of."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import Partition, Task
from melisma.learning.compression import compression_for
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import divided
from melisma.learning.steps import Steps
from melisma.peer.algorithms import AetSgd, Algorithm, LocalSgd
from melisma.peer.node import Model, Node, NodeIdentity
from melisma.peer.nodes import create_node
from melisma.peer.topology import Topology, topology_for

Ints = NDArray[np.int64]
# Names are parts of file names and addresses.
NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,31}", re.ASCII)


def check_name(name: str) -> None:
    """`SettingError` unless it can be the name of a node."""
    if not NAME.fullmatch(name):
        raise SettingError(
            f"{name!r:.60} is not a name for a node; expected up to 32 letters, digits, . _ -, of "
            "which the first is no . or -"
        )


@dataclass(frozen=True)
class PeerSettings:
    """What must be said once for all nodes.

    Each takes `iterations` steps, times its share where nodes are unlike. A neighbour that does not
    answer for `patience_s` is given up.
    """

    task: Task
    algorithm: Algorithm
    iterations: int
    compression: str = "none"
    patience_s: float = 10.0

    def with_share(self, share: float) -> "PeerSettings":
        """The same for a node that is so many times as fast as the mean of all."""
        if share == 1.0:
            return self
        if not isinstance(self.algorithm, AetSgd | LocalSgd):
            raise SettingError("shares are for rounds: of the algorithms, aet and local have them")
        algorithm = msgspec.structs.replace(self.algorithm, share=share)
        return replace(self, algorithm=algorithm, iterations=max(1, round(self.iterations * share)))

    def create_node(self, name: str, life: str, neighbours: tuple[str, ...], steps: Steps) -> Node:
        """A node of this group, on a model that begins like everybody's."""
        compression = compression_for(self.compression)
        start = f"{crc32(steps.vector.tobytes()):08x}"
        form = {
            "model": f"{self.task.model} of {steps.vector.size:,} parameters",
            "the checksum of first parameters (by the seed)": start,
            "algorithm": str(self.algorithm.__struct_config__.tag),
            "compression": compression.name,
        }
        me = NodeIdentity(name, life, self.iterations, form, self.patience_s)
        model = Model(steps.vector, steps.slopes)
        return create_node(me, neighbours, model, compression, self.algorithm)


@dataclass(frozen=True)
class Peers:
    """A group on a topology; `shares` are of the nodes in their order, like if there are none."""

    settings: PeerSettings
    topology: Topology
    topology_name: str
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in self.topology.names:
            check_name(name)
        count = len(self.topology.names)
        if self.shares and len(self.shares) != count:
            raise SettingError(f"{len(self.shares)} shares for {count} nodes; expected one each")
        for name, group in zip(self.topology.names, self.node_settings, strict=True):
            if group.iterations < 1:
                raise SettingError(f"{name} has no steps; expected at least one")

    @property
    def node_settings(self) -> list[PeerSettings]:
        """As each node sees it: its own rounds, and as many steps as they make."""
        shares = (
            normalise_shares([*self.shares]) if self.shares else [1.0] * len(self.topology.names)
        )
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
) -> Peers:
    """Nodes that train a task on that topology; of the task deadline and scheme do not matter.

    Its optimiser must be plain SGD, whose step sizes are the algorithm's: AET-SGD unless said.
    """
    group = PeerSettings(task, algorithm or AetSgd(), iterations, compression, patience_s)
    return Peers(group, topology_for(topology, nodes, task.seed), topology, tuple(shares))


def normalise_shares(speeds: list[float]) -> list[float]:
    """What each has of the steps, in proportion to speeds; the mean is 1."""
    mean = float(np.mean(speeds))
    return [speed / mean for speed in speeds]


def partition_samples(task: Task, labels: NDArray[Any], nodes: int) -> list[Ints]:
    """The samples of each node: like parts of all by the task's partition, none at two nodes."""
    sizes = np.full(nodes, len(labels) // nodes) + (np.arange(nodes) < len(labels) % nodes)
    if not sizes.all():
        raise SettingError(f"{len(labels)} samples are too few for {nodes} nodes")
    rng = generator(task.seed, "partition")
    return divided(labels, sizes, task.partition or Partition(), rng)


def take_samples(split: Split, samples: Ints) -> Split:
    """Some of the samples."""
    return Split(split.samples[samples], split.labels[samples])

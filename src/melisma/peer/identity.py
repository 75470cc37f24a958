"""The identity of a node, and the model that it trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from melisma.errors import DataError
from melisma.learning.compression import compression_for
from melisma.peer.guard import DROP_MEDIANS, GuardMode, norm_of
from melisma.peer.neighbour import Vector

UNCOMPRESSED = compression_for("none")


@dataclass(frozen=True)
class NodeIdentity:
    """The name and incarnation of a node, and the properties that its neighbours must share.

    An incarnation is a life of the node's state: it goes on when the node resumes from its state,
    which is counted in `restarts`, and a later one begins when the node starts anew.
    It takes `iterations` steps. It waits `patience_s` for an answer of a neighbour, and looks for
    lost neighbours at that interval. `keys` are the keys of nodes that are known before they are
    first heard of; `share` scales the size of its rounds. `guard` bounds updates of neighbours.
    """

    name: str
    incarnation: int
    iterations: int
    compatibility: Mapping[str, str]
    patience_s: float
    share: float = 1.0
    guard: GuardMode = "clip"
    keys: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0

    def describe_mismatch(self, other: Mapping[str, str]) -> str:
        """Describe the first property that differs; return an empty string if all match."""
        mine = self.compatibility
        for name in [*mine, *(other.keys() - mine.keys())]:
            here, there = mine.get(name, "none"), other.get(name, "none")
            if here != there:
                return f"{name} here is {here}, there {there}"
        return ""


@dataclass(frozen=True, eq=False)
class Model:
    """All parameters as one array, and the sum of gradients since it was last set to 0.

    The driver trains on these arrays; between two steps a node may change them.
    """

    vector: Vector
    gradient_sum: Vector

    def describe_invalid(self, content: bytes) -> str:
        """Describe why bytes are no plausible model; empty if they are one, or if empty."""
        try:
            other = UNCOMPRESSED.unpack(content, self.vector.size if content else 0)
        except DataError as error:
            return f"its model: {error}"
        if not content or (norm := norm_of(self.vector)) == 0:
            return ""
        distance = norm_of(other - self.vector) / norm
        if distance > DROP_MEDIANS:
            return (
                f"its model is {distance:.3g} times the norm of this node's model away from it; "
                f"expected at most {DROP_MEDIANS:g} times"
            )
        return ""

"""The configuration of one live node."""

import msgspec

from melisma.peer.group import PeerSettings


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one node.

    It trains on part number `part` of `parts` of the data. `neighbours` without an entry in
    `addresses` are looked up on the notice `board` or, with `discover`, on the local network.
    Without a `token` any host that reaches a node of the group can join it, which beyond this
    machine has to be allowed by `open_group`. `keys` are known keys of nodes; a name without one
    belongs to the first key that uses it. The node's own key is kept in a file unless `private_key`
    is given. With `control_token` only its owner may ask for progress. With `await_begin` the node
    listens, and begins when its owner calls `begin`. `module_folders` are added to the import path.
    Report and model are written to `folder`, and the state from which the node resumes when it is
    started again, unless `keep_state` is off. Times are measured from `start_unix_s`, or from the
    first start of the node.
    """

    name: str
    settings: PeerSettings
    score_every: int = 0
    part: int = 0
    parts: int = 1
    neighbours: tuple[str, ...] = ()
    addresses: dict[str, str] = msgspec.field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    open_group: bool = False
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    private_key: str | None = None
    control_token: str | None = None
    await_begin: bool = False
    tls: bool = False
    board: str | None = None
    discover: bool = False
    advertise: str | None = None
    module_folders: tuple[str, ...] = ()
    folder: str | None = None
    keep_state: bool = True
    start_unix_s: float | None = None

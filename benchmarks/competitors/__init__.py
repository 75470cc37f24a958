"""The systems that are compared, one a module.

A module serves two functions that return their argument, and calls them:

`serve(ready)` serves in this process until it is ended, and calls `ready(address)` once it
listens. `Client(address)` has `small(text)` and `echo(array)`, which either block or are coroutine
functions, and `concurrent_small(text)` of the kind that suits many callers best: blocking ones
are called from threads, coroutine functions from tasks of one loop. An array goes in and an array
comes out on both sides, so that nobody is spared the decoding that the others do.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.harness import environments


@dataclass(frozen=True)
class Peer:
    """One row: a module, what a caller imports, and the environment that both ends run in."""

    module: str
    imports: str
    requirements: str | None = environments.RPC
    variables: Mapping[str, str] = field(default_factory=dict)


# Ray's clusters ask for a token; one of our own keeps it from leaving one in the home folder.
_RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
_CODEC = "import asyncio, melisma.axon.codec.encoding"
_OURS = "import melisma.axon"
_ECRG = "import axon.client"

PEERS = {
    "raw TCP, threads": Peer("raw_tcp", "import socket", None),
    "our codec, asyncio streams": Peer("codec_streams", _CODEC, None),
    "our codec, asyncio sockets": Peer("codec_sockets", _CODEC, None),
    "gRPC sync": Peer("grpc_sync", "import grpc"),
    "gRPC aio": Peer("grpc_aio", "import grpc.aio"),
    "aiohttp alone": Peer("aiohttp_alone", "import aiohttp"),
    "Ray actor": Peer("ray_actor", "import ray", "ray.txt", _RAY),
    "axon-ECRG 0.2.4": Peer("axon_ecrg", _ECRG, "axon-ecrg.txt"),
    "axon-ECRG 0.2.4, Flask 2.2": Peer("axon_ecrg", _ECRG, "axon-ecrg-flask-2.txt"),
    "melisma.axon, inline": Peer("axon_inline", _OURS, None),
    "melisma.axon, threads": Peer("axon_thread", _OURS, None),
}

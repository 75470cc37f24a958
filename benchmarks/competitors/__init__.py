"""The compared systems, one module for each.

A module serves two functions that return their argument, and calls them:

`serve(ready)` serves in this process until the process ends, and calls `ready(address)` once it
listens. `Client(address)` has `small(text)` and `echo(array)`, which either block or are coroutine
functions, and `concurrent_small(text)` of the kind that suits many callers best: blocking ones
are called from threads, coroutine functions from tasks of one loop. An array goes in and an array
comes out on both sides, so that every system encodes and decodes.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.harness import environments


@dataclass(frozen=True)
class Competitor:
    """A module, the imports of a caller, and the environment of both ends."""

    module: str
    imports: str
    requirements: str | None = environments.RPC
    variables: Mapping[str, str] = field(default_factory=dict)


# Ray requires a token; with this one it does not create one in the home folder.
_RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
_CODEC = "import asyncio, melisma.axon.codec.encoding"
_AXON = "import melisma.axon"
_ECRG = "import axon.client"

COMPETITORS = {
    "raw TCP, threads": Competitor("raw_tcp", "import socket", None),
    "Axon codec, asyncio streams": Competitor("codec_streams", _CODEC, None),
    "Axon codec, asyncio sockets": Competitor("codec_sockets", _CODEC, None),
    "gRPC sync": Competitor("grpc_sync", "import grpc"),
    "gRPC aio": Competitor("grpc_aio", "import grpc.aio"),
    "aiohttp alone": Competitor("aiohttp_alone", "import aiohttp"),
    "Ray actor": Competitor("ray_actor", "import ray", "ray.txt", _RAY),
    "axon-ECRG 0.2.4": Competitor("axon_ecrg", _ECRG, "axon-ecrg.txt"),
    "axon-ECRG 0.2.4, Flask 2.2": Competitor("axon_ecrg", _ECRG, "axon-ecrg-flask-2.txt"),
    "melisma.axon, inline": Competitor("axon_inline", _AXON, None),
    "melisma.axon, threads": Competitor("axon_thread", _AXON, None),
}

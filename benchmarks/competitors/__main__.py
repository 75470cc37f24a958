"""One end of one peer, in a process of its own.

`python -m benchmarks.competitors serve MODULE` prints its address once it listens;
`python -m benchmarks.competitors measure MODULE ADDRESS [--quick]` prints the figures of one
round as JSON.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

SAYS = "benchmark: "


def serve(peer: Any) -> None:
    peer.serve(lambda address: print(SAYS + address, flush=True))


async def call(peer: Any, address: str, quick: bool) -> None:
    from benchmarks.axon import measure  # Brings NumPy, which would weigh on a server.

    figures = await measure.measure(peer.Client(address), quick)
    print(SAYS + json.dumps(figures), flush=True)


def main() -> None:
    what, module, *rest = sys.argv[1:]
    peer = importlib.import_module(f"benchmarks.competitors.{module}")
    if what == "serve":
        serve(peer)
    else:
        asyncio.run(call(peer, rest[0], "--quick" in rest))


if __name__ == "__main__":
    main()

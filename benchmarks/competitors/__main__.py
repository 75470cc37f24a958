"""Run one end of one competitor in its own process.

`python -m benchmarks.competitors serve MODULE` prints its address once it listens;
`python -m benchmarks.competitors measure MODULE ADDRESS [--quick]` prints the figures of one
round as JSON.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

OUTPUT_PREFIX = "benchmark: "


def serve(competitor: Any) -> None:
    competitor.serve(lambda address: print(OUTPUT_PREFIX + address, flush=True))


async def call(competitor: Any, address: str, quick: bool) -> None:
    from benchmarks.axon import measure  # Imports NumPy, which would add to a server's memory.

    figures = await measure.measure(competitor.Client(address), quick)
    print(OUTPUT_PREFIX + json.dumps(figures), flush=True)


def main() -> None:
    role, module, *rest = sys.argv[1:]
    competitor = importlib.import_module(f"benchmarks.competitors.{module}")
    if role == "serve":
        serve(competitor)
    else:
        asyncio.run(call(competitor, rest[0], "--quick" in rest))


if __name__ == "__main__":
    main()

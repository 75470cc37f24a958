"""The worker process of `melisma run`: serves one function until its standard input closes.

Run as `python -m melisma.cli.hello_worker`; its first line of output is its address.
"""

import os
import sys
from contextlib import suppress

from melisma import axon


def simple_hello(name: str) -> str:
    """Greet by name, and say which process does it."""
    return f"Hello, {name}, from process {os.getpid()}"


def serve() -> None:
    """Serve on a free port of this machine and print the address."""
    worker = axon.Worker(port=0)
    worker.rpc()(simple_hello)
    with worker.start() as address:
        print(address, flush=True)
        # Ctrl-C in a terminal reaches this process too; the parent says what there is to say.
        with suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    serve()

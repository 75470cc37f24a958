"""melisma.axon with its default executor, a thread pool."""

from collections.abc import Callable

from benchmarks.competitors import axon_inline
from benchmarks.competitors.axon_inline import Client

__all__ = ["Client", "serve"]


def serve(ready: Callable[[str], None]) -> None:
    axon_inline.serve(ready, executor="thread")

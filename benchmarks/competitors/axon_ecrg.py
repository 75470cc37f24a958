"""The original Axon, with its inline executor and its blocking stubs.

Its worker listens on every interface; here its Flask application listens on loopback only.
"""

from collections.abc import Callable
from typing import Any

import axon.client  # type: ignore[import-not-found]
import axon.config  # type: ignore[import-not-found]
import axon.stubs  # type: ignore[import-not-found]
import axon.worker  # type: ignore[import-not-found]
from werkzeug.serving import make_server  # type: ignore[import-not-found]


def small(text: str) -> str:
    return text


def echo(array: Any) -> Any:
    return array


def serve(ready: Callable[[str], None]) -> None:
    axon.worker.rpc()(small)
    axon.worker.rpc()(echo)
    application = axon.config.default_worker_tl.app
    server = make_server("127.0.0.1", 0, application, threaded=True)
    ready(f"http://127.0.0.1:{server.port}")
    server.serve_forever()


class Client:
    def __init__(self, address: str) -> None:
        def stub(name: str) -> Any:
            url = f"{address}/rpc/{name}/__call__"
            return axon.stubs.SyncStub(tl=axon.config.default_client_tl, url=url)

        self.small, self.echo = stub("small"), stub("echo")
        self.concurrent_small = self.small

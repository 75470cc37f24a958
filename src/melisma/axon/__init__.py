"""Remote calls over HTTP.

Serve a function in three lines, in ``worker.py``::

    from melisma import axon

    @axon.worker.rpc()
    def simple_hello(name):
        return f"Hello {name}!!"

    axon.worker.init()

and call it in two::

    from melisma import axon

    print(axon.connect("http://127.0.0.1:8000").simple_hello("John"))

The layout, top to bottom; a module imports only from lines below its own, and a sub-package
from itself::

    worker.py        `Worker`, `rpc`, `init`
    discovery/       notice board, multicast DNS, relay
    client/          stubs, remote workers, calls
    server/          functions served over HTTP
    transport/       connections, TLS, HTTP/1.1
    codec/           values to bytes and back
    address.py       addresses of workers
    call_record.py   records for trace hooks
"""

from melisma.axon import client, worker
from melisma.axon.address import Address
from melisma.axon.call_record import CallRecord
from melisma.axon.client.caller import CallOptions
from melisma.axon.client.file_download import fetch
from melisma.axon.client.remote import Remote, connect, describe, resume
from melisma.axon.client.stubs import Handle
from melisma.axon.discovery.board import Notice, NoticeBoard, workers
from melisma.axon.discovery.multicast import DiscoveredWorker, discover
from melisma.axon.discovery.relay import Relay
from melisma.axon.server.authentication import Authenticator, Credentials
from melisma.axon.server.calls.context import CallContext, current_call
from melisma.axon.server.limits import Limits
from melisma.axon.server.tokens import issue_token
from melisma.axon.transport.tls import create_identity
from melisma.axon.worker import Worker, board_worker

__all__ = [
    "Address",
    "Authenticator",
    "CallContext",
    "CallOptions",
    "CallRecord",
    "Credentials",
    "DiscoveredWorker",
    "Handle",
    "Limits",
    "Notice",
    "NoticeBoard",
    "Relay",
    "Remote",
    "Worker",
    "board_worker",
    "client",
    "connect",
    "create_identity",
    "current_call",
    "describe",
    "discover",
    "fetch",
    "issue_token",
    "resume",
    "worker",
    "workers",
]

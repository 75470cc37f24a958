"""Remote calls over HTTP, for whoever has never written a distributed program and whoever has.

Serve a function in three lines, in ``worker.py``::

    from melisma import axon

    @axon.worker.rpc()
    def simple_hello(name):
        return f"Hello {name}!!"

    axon.worker.init()

and call it in two, anywhere::

    from melisma import axon

    print(axon.connect("http://127.0.0.1:8000").simple_hello("John"))

A map of the layout, bottom to top:

==========================================  ==================================================
codec, message, arrays, tensors, records    values to bytes and back
http, transport, blocking, event, wire      bytes on a connection, blocking or on an event loop
address, tls, tokens, limits                where, how safely, by whom, how much
functions, outcome, context, eager, threads,
processes, streams, ledger, spool, calls    a call at the worker
files, server, service, worker              the worker
network, requests, results, returns,
caller, remote, client                      the caller
board, discovery, relay, presence           how they find each other
metrics                                     what is seen of it
==========================================  ==================================================
"""

from melisma.axon import client, worker
from melisma.axon.address import Address
from melisma.axon.call_record import CallRecord
from melisma.axon.client.caller import Options
from melisma.axon.client.file_download import fetch
from melisma.axon.client.remote import Remote, connect, describe, resume
from melisma.axon.client.stubs import Handle
from melisma.axon.discovery.board import Notice, NoticeBoard, workers
from melisma.axon.discovery.multicast import Found, discover
from melisma.axon.discovery.relay import Relay
from melisma.axon.server.context import CallContext, current_call
from melisma.axon.server.limits import Limits
from melisma.axon.server.tokens import issue_token
from melisma.axon.worker import Worker, board_worker

__all__ = [
    "Address",
    "CallContext",
    "CallRecord",
    "Found",
    "Handle",
    "Limits",
    "Notice",
    "NoticeBoard",
    "Options",
    "Relay",
    "Remote",
    "Worker",
    "board_worker",
    "client",
    "connect",
    "current_call",
    "describe",
    "discover",
    "fetch",
    "issue_token",
    "resume",
    "worker",
    "workers",
]

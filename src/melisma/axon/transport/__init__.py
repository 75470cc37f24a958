"""Bytes on a connection, over blocking sockets or asyncio.

::

    interface.py           the interface of all transports
    socket_transport.py    blocking sockets
    asyncio_transport.py   the event loop
    tls.py                 TLS with a pinned certificate
    http.py                HTTP/1.1 heads
    wire.py                messages on a connection
    eager.py               coroutines that start without a task
"""

"""Bytes on a connection, over blocking sockets or asyncio.

::

    interface.py           the interface of both transports
    socket_transport.py    blocking sockets
    asyncio_transport.py   asyncio
    pool.py                connections, opened and kept
    tls.py                 TLS with a pinned certificate
    http.py                HTTP/1.1 heads
    http_client.py         one HTTP request
    wire.py                messages on a connection
    eager.py               coroutines that start without a task
"""

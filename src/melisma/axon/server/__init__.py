"""The server side of calls.

::

    service.py             running a listener until a signal, or on a thread
    http_server.py         an HTTP server: each request to a handler, its reply back
    server_connection.py   a connection of the server
    exchange.py            one request and its reply
    listener.py            accepting connections up to a limit
    receive_budget.py      memory for bodies that are being received
    limits.py              limits on calls, bodies and connections
    authentication.py      credentials of a request and the interface of their check
    tokens.py              shared secrets and tokens issued from them
    file_server.py         files by GET, resumable
    calls/                 calls of functions: from a request to its outcome
"""

"""The server side of calls.

::

    service.py          running a listener until a signal, or on a thread
    http_server.py      connections, requests, limits
    listener.py         accepting connections up to a limit
    receive_budget.py   memory for bodies that are being received
    functions.py        the functions that a worker exposes
    calls.py            a call from its request to its outcome
    ledger.py           known calls, so that none runs twice
    result_spool.py     results that wait to be fetched
    result_posting.py   results posted to callers that listen
    streams.py          results of generators
    context.py          the call that a running function serves
    thread_pool.py      threads for calls
    process_pool.py     processes for calls
    file_server.py      files by GET, resumable
    authentication.py   credentials of a request and the interface of their check
    tokens.py           shared secrets and tokens issued from them
    limits.py           limits on calls, bodies and connections
    call_metrics.py     Prometheus counters
"""

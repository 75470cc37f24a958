"""Calls of the functions that a worker exposes.

::

    functions.py        the functions that a worker exposes
    calls.py            a call from its request to its outcome
    ledger.py           known calls, so that none runs twice
    result_spool.py     results that wait to be fetched
    result_posting.py   results posted to callers that listen
    streams.py          results of generators
    context.py          the call that a running function serves
    thread_pool.py      threads for calls
    process_pool.py     processes for calls
    call_metrics.py     Prometheus counters
"""

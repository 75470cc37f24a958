"""How callers find workers.

::

    board.py          the notice board
    multicast.py      multicast DNS
    relay.py          calls to workers that dial out
    registration.py   how a worker makes itself known
"""

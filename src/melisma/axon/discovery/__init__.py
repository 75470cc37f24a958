"""Finding and reaching workers.

::

    board.py          the notice board
    multicast.py      multicast DNS
    relay.py          calls to workers behind NAT
    registration.py   making a worker known
"""

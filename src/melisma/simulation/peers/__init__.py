"""Training without an orchestrator in virtual time.

::

    peer_simulation.py     `simulate_peers`: from settings to a report
    peer_driver.py         drives the machines of `peer/` by one event queue
    delays.py              random delays of steps and messages
    peer_invariants.py     what must hold whatever goes wrong
    peer_fault_search.py   random fault schedules; failing ones are shrunk
"""

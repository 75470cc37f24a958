"""Training without an orchestrator in virtual time.

::

    peer_simulation.py     `simulate_peers`: from settings to a report
    peer_scenario.py       nodes, delays and faults of a simulation
    peer_driver.py         drives the state machines of `peer/` by one event queue
    peer_network.py        messages between nodes, and what faults and attacks do to them
    delays.py              random delays of steps and messages
    attacks.py             nodes that fall silent, and forged messages
    peer_invariants.py     properties that hold under all faults
    peer_fault_search.py   random fault schedules; failing ones are shrunk
"""

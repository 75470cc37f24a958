"""Nodes that train without an orchestrator, on the wall clock.

::

    peer_process.py   a node in a process of its own
    messenger.py      messages between nodes over Axon, sent until acknowledged
    local_group.py    `run_peers`: a group of nodes as processes of this machine
"""

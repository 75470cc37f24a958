"""Nodes that train without an orchestrator, on the wall clock.

::

    admission.py      nodes that prove to belong to the group
    messenger.py      messages between nodes over Axon, sent until acknowledged
    node_runner.py    drives the state machine of one node
    node_process.py   one node in a process of its own
    local_group.py    `run_peers`: a group of nodes as processes of this machine
"""

"""Nodes that train without an orchestrator, on the wall clock.

::

    admission.py          nodes that prove to belong to the group
    messenger.py          messages between nodes over Axon
    outbox.py             messages to one neighbour, sent until acknowledged
    network_events.py     events that a messenger queues for its node
    neighbour_lookup.py   addresses of a neighbour that it announced
    node_config.py        the configuration of one node
    node_journal.py       the file from which a killed node resumes
    node_store.py         what of a node is saved, when, and restored
    node_runner.py        drives the state machine of one node
    node_process.py       one node in a process of its own
    group_record.py       the file from which a killed group resumes
    local_group.py        `run_peers` and `resume_peers`: nodes as processes of this machine
"""

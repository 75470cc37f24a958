"""Wall clock: an orchestrator and learners as processes of their own, over Axon.

What is where::

    orders.py        what travels between orchestrator and learner, beside parameters and shards
    goal.py          what a run is about
    orchestrator.py  lets the cycle machine decide, and carries out what it says
    desk.py          where learners call; seats.py keeps their orders, jury.py their scores
    storehouse.py    what the orchestrator keeps on disk: shards, parameters, updates, the trace
    agent.py         a learner: asks for orders and follows them
    job.py           an assignment at a learner, against its deadline
    supply.py        parameters and shards that it fetches
    measuring.py     its benchmark; experience.py what it knows of its costs
    own.py           data that lies on its device
    device.py        the device that a learner stands for, emulated or real
    processes.py     learners as processes of this machine
    preparation.py   what a run needs, read and checked
    training.py      `train`: a task and a fleet to a report
    peer.py          a node without an orchestrator; peer_post.py its messages
    peers.py         `run_peers`: nodes as processes of this machine, to a report
"""

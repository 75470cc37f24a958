"""A learner on the wall clock: the agent of one device.

::

    agent.py              polls the orchestrator and carries out its messages
    active_assignment.py  one assignment against its deadline
    downloader.py         fetches parameters and shards, resuming broken transfers
    subset_benchmark.py   measures this device on a few shards
    local_data.py         the data of this device in federated learning
    device.py             this device as it is, or an emulated one
    paced_trainer.py      a trainer slowed to the speed of the emulated device
"""

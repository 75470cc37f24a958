"""A learner on the wall clock: the process on one device.

::

    learner_settings.py    the settings of a learner process
    learner_process.py     registers the learner and runs its agent
    agent.py               polls the orchestrator and carries out its instructions
    task_processes.py      the processes of this device, one for each task of an orchestrator
    turns.py               the processes of a device for several tasks take turns
    connection.py          calls and downloads that are repeated until they are answered
    active_assignment.py   one assignment, its deadline, extensions and phases
    training_spool.py      the training and the costs of this device in files, for its successor
    training_saver.py      copies the state of a training, and restores it
    saved_training.py      a training between two batches as bytes
    saved_costs.py         costs as bytes
    resumption.py          the rest of a saved training when its assignment is repeated
    shard_requests.py      requests further shards, and releases those it will not get to
    fetcher.py             fetches shards in its own thread, also ahead of the next cycle
    downloader.py          fetches parameters and shards, resuming broken transfers
    subset_benchmark.py    measures this device on a few shards
    trainer_setup.py       the trainers, with the code that the owner allows, within limits
    trusted_code.py        permission for code of the task, by module or as a bundle
    code_limits.py         limits of memory and time for such code
    local_data.py          the data of this device in federated learning
    running_stressor.py    work that competes with training in an operating state
    state_reports.py       what is reported of the costs in each operating state
    device.py              this device, or an emulated one
    device_reports.py      reports of a device to its owner
    device_identity.py     key and certificate of this device, and the orchestrators it knows
    reach.py               finds the address at which an orchestrator answers
"""

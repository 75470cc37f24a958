"""The computation of simulated learners: nothing, or real training.

::

    compute.py        what the driver needs; timing only
    real_training.py  trains for real and averages the updates
    work_trainer.py   trains the work of learners, one by one or batched
    verified_training.py  honest and greedy learners, and the checks of their updates
    work_record.py    the shards that learners were given in a cycle
    sample_index.py   the samples in each shard
    fork_pool.py      forked processes that share the work
    memory.py         whether a simulation fits into memory
"""

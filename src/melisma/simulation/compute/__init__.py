"""The computation of simulated learners: nothing, or real training.

::

    compute.py        timing only, or real training
    work_record.py    the shards that learners were given in a cycle
    sample_index.py   the samples in each shard
    fork_pool.py      forked processes that share the work
    memory.py         whether a simulation fits into memory
"""

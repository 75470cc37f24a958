"""The learners of a simulation, all at once, as arrays; they decide by `cycle.learner`.

::

    simulated_learners.py   the state of all learners, in columns
    simulated_benchmark.py  what learners report before a cycle: costs or bounds
    simulated_training.py   what learners do in a cycle: fetch, train, train more
    simulated_updates.py    the updates that they will send
    benchmark_timeline.py   what a learner measures in a benchmark, and how long it takes
    cycle_timeline.py       how far each learner gets in a cycle, and when it requests shards
    cost_histories.py       the costs that each learner has measured
    cost_reports.py         what learners report of their costs where several tasks share them
    shard_caches.py         the shards that each learner holds
    devices.py              how long work takes on each device
"""

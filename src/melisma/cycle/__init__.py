"""The global update cycle as a state machine: events in, commands out; no I/O, no clock.

::

    events.py         what happened: the input of the machine
    commands.py       what to do, with the reason: its output
    machine.py        `CycleMachine`: handles events; the life of a run
    collecting.py     collects costs and bounds before a round, and probes deadlines
    sampling.py       which learners take part in a cycle
    rounds.py         dispatches work, receives updates, closes the cycle
    sharing.py        requests shares for a task that shares its learners, and trains them
    schedule.py       lengths of cycles in a run with a total time
    late_work.py      awaits late updates, and returns the shards of lost ones
    restarts.py       repeats lost instructions after a restart; continues an ended run
    trust.py          which updates are checked, and what the checks show
    coverage.py       which shards an update covers
    extensions.py     gives learners further shards within a cycle
    planning.py       builds the scheme's problem, plans it and deals shards
    dealing.py        which shards each learner gets
    local_shards.py   sizes of shards; shards on the devices in federated learning
    state.py          the state of the machine, in columns by learner
    snapshot.py       the state as bytes, and back
    learner.py        decisions that learners make themselves
    state_costs.py    what learners report of their costs in several operating states
    cache_index.py    which learner holds which shard
    ragged.py         rows of unequal length in two arrays
"""

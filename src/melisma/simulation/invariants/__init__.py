"""Properties that hold after each step of a run, whatever the faults; checked independently.

::

    invariants.py          checks one step after another, and the whole trace at the end
    shard_invariants.py    which learners get which shards
    update_invariants.py   which updates count, and with which weight
    assignment_records.py  what the checks know of assignments
    service_invariants.py  the payments of several tasks that share learners
    violations.py          the error that a violated invariant raises
"""

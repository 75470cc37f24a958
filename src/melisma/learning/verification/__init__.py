"""Checks whether an update is the result of the training that its learner reports.

::

    segments.py       intermediate states of a training, their hashes, and one segment of them
    reexecution.py    trains a segment once more, and compares the result within a tolerance
    loss_gap.py       the first filter: loss on shards that a learner was given, and on others
    update_check.py   both checks of one update, and their result
"""

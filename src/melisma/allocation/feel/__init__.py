"""FEEL: batch sizes and radio slots together, by Ren, Yu and Ding.

::

    optimum.py          entry: the exact optimum in real batches, then whole ones
    uplink.py           largest batches that all learners can send by a given time
    integer_batches.py  whole batches of largest efficiency
"""

from melisma.allocation.feel.optimum import feel as feel

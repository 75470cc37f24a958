"""Data sets, shards and partitions.

::

    datasets.py    data sets by name
    memory_data.py data that is given as Python objects
    sources.py     downloads of their files, checked by hash
    images.py      readers of IDX and PNG files
    shards.py      encoding of shards, their folder and their cache
    partition.py   the assignment of samples to shards and devices
"""

"""Data sets, shards and partitions.

::

    datasets.py    data sets by name
    sources.py     where their files are fetched from, checked by hash
    images.py      IDX and PNG files
    shards.py      shards as content with a hash, on disk and in a cache
    partition.py   which samples belong to which shard and device
"""

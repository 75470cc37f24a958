"""The orchestrator's process in a simulation: it journals, stops, and goes on from its journal.

Used only by runs with faults of the orchestrator; other runs write no journal.

::

    orchestrator_process.py  the cycle machine with its journal: stops and restarts
    missed_changes.py        joins and departures while the orchestrator is down
    storage.py               where journal and updates are; in memory if the disk has no faults
    simulated_disk.py        files in memory that lose, tear and reorder what was not synced
    disk_faults.py           which faults of a run hit its disk, and when
    disk_storage.py          journal and updates on the simulated disk
    disk_vfs.py              SQLite on the simulated disk
"""

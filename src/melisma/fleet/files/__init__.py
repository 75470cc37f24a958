"""Reading TASK.toml, FLEET.toml and traces, and building a fleet from them.

::

    toml_file.py        TOML files as typed records, with errors that name file and key
    task_file.py        a task from a TASK.toml
    fleet_file.py       the tables and keys of FLEET.toml
    states_file.py      the operating states of a real device
    fleet_builder.py    a fleet from those tables
    learner_blocks.py   the learners of each table
    apportionment.py    the number of learners of each table in a fleet of another size
    profiles.py         typical figures of known devices
    spread.py           random differences between the members of a group
    trace_file.py       availability traces in CSV files
    bandwidth_trace.py  bandwidth traces in text files
"""

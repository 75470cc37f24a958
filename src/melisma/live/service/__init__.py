"""Several tasks that share a fleet, on the wall clock: the decisions of `melisma.service`.

::

    live_service.py         carries out the decisions, for the orchestrators of all tasks
    task_host.py            one task: its orchestrator, its learners and its files
    service_preparation.py  loads tasks that share an emulated fleet, before a process starts
    emulated_service.py     runs them, with a process of this machine for each device and task
"""

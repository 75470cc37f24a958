"""Several tasks that share a fleet, on the wall clock: the decisions of `melisma.service`.

::

    live_service.py         carries out the decisions, for the orchestrators of all tasks
    task_host.py            one task: its orchestrator, its learners and its files
    learner_numbers.py      the numbers of learners in a task and in the service
    service_preparation.py  loads tasks that share an emulated fleet, before a process starts
    emulated_service.py     runs them, with a process of this machine for each device and task
    served_service.py       serves devices that join, and tasks that are submitted
    proposals.py            tasks that wait for their owner, who sees what they would cost
    service_learners.py     the methods that these devices call before they work for a task
    owner_methods.py        the methods that the owner calls: submit, cancel, status
    service_folder.py       the folder of such a service: its journal and its tasks
"""

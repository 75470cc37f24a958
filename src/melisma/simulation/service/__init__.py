"""Several tasks that share a fleet, in virtual time: the decisions of `melisma.service`.

::

    service_simulation.py  from files and options to a report of all tasks
    task_selection.py      the tasks of a run: their files, their scheme, settings that do not fit
    service_driver.py      the service in virtual time, with a driver for each task
    service_process.py     the journal of the service, and stops of its process
    service_fault_search.py  random faults, and the laws of cycles and payments
    shared_learners.py     one learner does one thing at a time, whatever task it is for
    task_run.py            one task of a run: its trace, progress, model and report
"""

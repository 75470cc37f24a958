"""Decisions of several tasks that share a fleet, as a state machine without I/O and clock.

::

    events.py           what happened: the input of the machine
    commands.py         what to do, with the reason: its output
    service_machine.py  `ServiceMachine`: which tasks join a round, and which wait
    service_state.py    the state of the machine: its tasks, its learners and the boundary
    accounts.py         what a task has reserved, paid and left of its budget
    payments.py         commands that pay counted work, and release all other work
    round_planning.py   carries out `PlanRound`: one problem of all its tasks, by a scheme
    shared_settings.py  the one scheme of all tasks, their names, and settings that they cannot have
    plan_candidates.py  what other budgets and deadlines of submitted tasks would give
    observation.py      what the steps of a task's cycle machine mean for the service
"""

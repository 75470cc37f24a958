"""Training on the wall clock: orchestrator, learners and peers as processes that talk over Axon.

::

    orchestrator/        runs the cycle machine and serves the learners
    learner/             the agent on a device
    joining/             the light process on a device that joins and starts the learner
    service/             several tasks that share a fleet
    peer/                a node that trains without an orchestrator
    state_folder.py      files that stay between runs, for their owner alone
    join_string.py       addresses, fingerprint and token of an orchestrator as one word
    local_addresses.py   the addresses of this machine
    protocol.py          messages between orchestrator and learner
    plausible.py         ranges of the numbers that learners report
    code_bundle.py       the source of a task's own model, for devices that trust it
    pairing.py           proves a short code between a device and an orchestrator
    invitation.py        the join command of a run, and its notes for owners of devices
    orchestrator_settings.py  how devices reach and join an orchestrator
    reception.py         how devices reach an orchestrator: identity, enrolment, pairing
    orchestration.py     `orchestrate`: from a task and devices that join to a report
    preparation.py       loads and checks the inputs of a run before a process starts
    run_setup.py         what a run was started with, in its journal
    run_resumption.py    what a resumed run goes on from
    resume_preparation.py  loads what is needed to resume a run
    resuming.py          `resume`: from the folder of a run to a report
    emulated_learners.py  the devices that this machine emulates
    launcher.py          forks the processes, with their modules imported once
    processes.py         learners and nodes as processes of this machine
    training.py          `train`: from a task and a fleet to a report
"""

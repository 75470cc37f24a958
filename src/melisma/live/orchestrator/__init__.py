"""The orchestrator on the wall clock: one run of one task.

::

    run_spec.py              the task, trainer and test data of one run
    orchestrator.py          feeds events to the cycle machine and carries out its commands
    learner_service.py       the methods that learners call
    authentication.py        names the learner that calls
    mailbox.py               instructions that wait until a learner polls
    run_store.py             shards, parameters and updates on disk
    federated_evaluator.py   evaluation by learners where the orchestrator has no test data
"""

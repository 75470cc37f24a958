"""The orchestrator on the wall clock: one run of one task.

::

    run_spec.py                 the task, trainer and test data of one run
    orchestrator.py             feeds events to the cycle machine and carries out its commands
    lobby.py                    the learners that get ready before the run begins
    learner_service.py          the methods that learners call
    learner_worker.py           the worker that serves them, and its limits
    learner_authentication.py   names the learner that calls
    strict_methods.py           methods that callers may call with any arguments
    call_rates.py               the most calls of a caller per second
    refusal_log.py              lines about callers that are refused
    registry.py                 the devices that may be learners, by their certificates
    enrolment.py                the exchange of a join token for an entry in the registry
    status_service.py           the status of the run, for its owner
    running_orchestrator.py     the orchestrator that runs on this machine now
    session_records.py          the sessions of learners in the journal
    mailbox.py                  instructions that wait until a learner polls
    run_store.py                shards, parameters and updates on disk
    accepted_updates.py         the updates that no average contains yet
    update_averaging.py         the average of the updates on disk
    assignment_versions.py      the shards that each learner was given in recent cycles
    update_verifier.py          checks updates in a thread of its own
    run_journal.py              the steps of the run, on disk before anything depends on them
    parameter_files.py          the parameters by version
    full_disk.py                waits a while for space on the disk
    federated_evaluator.py      evaluation by learners where the orchestrator has no test data
    combined_score.py           the score from the sums of learners, with a bound for each of them
"""

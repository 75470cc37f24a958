"""Tables and lines that the subcommands print.

::

    bench_view.py         `melisma bench`
    candidates_view.py    `melisma plan --candidates`
    compare_view.py       `melisma compare`
    invitation_view.py    the command with which devices join an orchestrator
    join_view.py          `melisma join`
    ledger_view.py        `melisma ledger`
    peers_view.py         `melisma peers`
    plan_view.py          `melisma plan`
    run_view.py           a run in progress
    run_summary_view.py   a finished run
    service_view.py       several tasks that shared a fleet, and their comparison
    size_view.py          `melisma size`
    status_view.py        a running orchestrator and enrolled devices
    tasks_status_view.py  the status of a service, with its tasks and devices
    table_view.py         bars and tables that other views use
"""

"""What the commands print.

::

    bench_view.py         `melisma bench`
    compare_view.py       `melisma compare`
    peers_view.py         `melisma peers`
    plan_data.py          the figures of `melisma plan` as plain data
    plan_table.py         tables with bars against a deadline
    plan_view.py          `melisma plan`
    run_view.py           a run while it goes on
    run_summary_view.py   a run at its end
"""

"""Plans of a cycle without a run: how much each learner would train, and what arrives in time.

::

    plan_request.py    `plan`: tasks, fleet and schemes, checked together
    plan_result.py     a plan with its forecast, as text, a table and JSON
    plan_report.py     the figures of a plan as plain data
"""

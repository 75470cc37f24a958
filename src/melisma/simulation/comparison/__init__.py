"""Schemes compared in virtual time, on the same seeds.

::

    scheme_runs.py          `compare`: runs every scheme on every seed
    service_comparison.py   several tasks that share a fleet, by several schemes
    compared_run.py         the figures of one run
    comparison.py           the figures of each scheme, and which one leads
    interval.py             confidence intervals
    figures.py              the names and units of the figures
    comparison_table.py     a comparison as a table
    comparison_picture.py   a comparison as an SVG picture
"""

"""Schemes compared in virtual time, on the same seeds.

::

    comparison.py           `compare`: runs every scheme on every seed
    interval.py             confidence intervals
    figures.py              the names and units of the figures
    comparison_table.py     a comparison as a table
    comparison_picture.py   a comparison as an SVG picture
"""

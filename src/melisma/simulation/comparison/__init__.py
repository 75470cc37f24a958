"""Schemes side by side in virtual time, on the same seeds.

::

    comparison.py           `compare`: runs every scheme on every seed
    figures.py              the names and units of the figures
    comparison_picture.py   a comparison as an SVG picture
"""

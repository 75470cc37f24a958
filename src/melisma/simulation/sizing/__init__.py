"""What a goal needs: the least deadline, devices or budget, or the largest model.

::

    sizing.py          `size`: searches among candidates by simulated runs on the same seeds
    size_goal.py       samples or an accuracy within a time, and whether a run reaches it
    candidates.py      the candidates of each question, the scarcest first
    bisection_search.py  the first candidate that holds, and its neighbours
    sizing_picture.py  the candidates as an SVG picture
"""

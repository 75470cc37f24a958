"""MED: several tasks share uncertain learners within a budget (chapter 4 of Mays).

One problem passes through the modules in this order; each calls only modules below it::

    solver.py            entry: check the arguments, search, and build the plan
    diagnosis.py         InfeasibleError: the constraint, the miss, and changes that are enough
    branch_and_bound.py  the search tree: tighten a node, close it, or branch
    objective.py         least sum or least cost: value of an assignment, first multipliers
    enumeration.py       at a node with a small gap: join columns into the best plan
    columns.py           all sets of learners near the bound, for one task and level
    local_search.py      heuristic: exchange learners between two tasks
    rounding.py          heuristic for many learners: round the fixed-level dual and repair
    subgradient.py       ascent on the dual's multipliers
    smoothed_dual.py     dual of the assignment at fixed levels, by Newton's method
    dual.py              Lagrangian dual: first guess, knapsacks for each interval, bound
    levels.py            times at which a task can end, in intervals
    amounts.py           best levels and amounts for a fixed assignment
    learner_classes.py   classes of identical learners, and back to learners
"""

from melisma.allocation.med.solver import cheapest as cheapest
from melisma.allocation.med.solver import med as med

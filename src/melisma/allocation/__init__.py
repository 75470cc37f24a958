"""Allocation of shards to learners: pure functions from a problem to a plan, one file per scheme.

::

    schemes.py         the table of schemes, which all other packages read
    builders.py        problems from tasks, fleets and measured costs
    cycle_problem.py   CycleProblem and CyclePlan: one task in one cycle
    equal.py           the same share for all
    proportional.py    shares by speed
    synchronous.py     the most passes that all can make
    staleness/         least difference of passes
    dab.py             the share that each learner requests
    shared_problem.py  SharedProblem and SharedPlan: several tasks within a budget
    med/               least sum of the tasks' seconds
    fifo.py            the earlier task chooses learners first
    smallest_demand.py the smaller task chooses first
    venn.py            the task that few learners can serve chooses first
    claims.py          tasks that choose learners one after another
    radio_problem.py   RadioProblem and RadioPlan: one round over a shared radio channel
    feel/              batches and slots together
    slots.py           slots for given batches
    costs.py           seconds of a learner, and the work that fits a deadline
    shares.py          whole shares within bounds
    bisection.py       largest number that reaches a target
    feasibility.py     whether a cycle problem has a plan, and if not, why
    infeasible.py      the text of an InfeasibleError
    checks.py          validation of arguments
    user_scheme.py     a function of the user as a scheme
"""

from melisma.allocation.builders import (
    build_cycle_problem,
    build_radio_problem,
    build_shared_problem,
    build_unmeasured_problem,
)
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.dab import dab, dab_shards
from melisma.allocation.equal import equal
from melisma.allocation.feel import feel
from melisma.allocation.med import med
from melisma.allocation.proportional import proportional
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.schemes import SCHEMES, PlanInputs, Scheme, get_scheme
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.allocation.slots import slots
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous

__all__ = [
    "SCHEMES",
    "CyclePlan",
    "CycleProblem",
    "PlanInputs",
    "RadioPlan",
    "RadioProblem",
    "Scheme",
    "SharedPlan",
    "SharedProblem",
    "build_cycle_problem",
    "build_radio_problem",
    "build_shared_problem",
    "build_unmeasured_problem",
    "dab",
    "dab_shards",
    "equal",
    "feel",
    "get_scheme",
    "med",
    "proportional",
    "slots",
    "staleness",
    "synchronous",
]

"""Who trains how much: pure functions from a problem to a plan, one scheme a file.

What is where::

    schemes.py   the table of schemes, which everything else reads
    builders.py  problems from a task and what is known of learners
    one_task.py  CycleProblem and CyclePlan; costs.py says what fits a deadline
                 equal, proportional, synchronous, staleness, dab
                 shares.py makes whole shares; room.py says whether there is room for all data,
                 and else what would be enough, in words by shortfall.py
    shared.py    SharedProblem and SharedPlan: several tasks, a budget
                 med
    radio.py     RadioProblem and RadioPlan: batches and slots of a radio cell
                 feel, slots
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

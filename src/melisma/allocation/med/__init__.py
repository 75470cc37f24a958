"""MED: several tasks share uncertain learners within a budget (chapter 4 of Mays).

`solver` is the way in, and `kinds` the problem as all else sees it. `levels`, `bound`, `ascent` and
`certificate` prove how low a sum can be. `market`, `bids`, `rounding` and `placing` guess who works
for what, `search` and `start` improve it by exchanges, `amounts` and `curves` divide the shards.
`columns`, `join` and `enumeration` find the best near the bound; `tree` branches where that is too
much, for one of two goals: `least_sum` or `least_cost`. `infeasible` says why there is no plan.
"""

from melisma.allocation.med.solver import cheapest as cheapest
from melisma.allocation.med.solver import med as med

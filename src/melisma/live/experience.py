"""What a learner knows of its own costs: from its benchmark, then from every cycle.

Kept apart: seconds to train a shard once, to fetch one, to fetch the model, to upload an update,
and whatever else there is in a cycle. Together they are the three costs of the cost model.
"""

from dataclasses import dataclass, fields, replace
from math import isnan, nan

import numpy as np

from melisma.cycle.events import Floats
from melisma.fleet.estimates import Estimate, Estimates


@dataclass(frozen=True, eq=False)
class Experience:
    """Estimates of one learner at one task."""

    train_s: Estimate
    ship_s: Estimate
    down_s: Estimate
    up_s: Estimate
    rest_s: Estimate

    def after(self, **took_s: float) -> "Experience":
        """With what one cycle took, by name; what is NaN was not measured."""
        seen = {name: value for name, value in took_s.items() if not isnan(value)}
        return replace(self, **{name: getattr(self, name).after(v) for name, v in seen.items()})

    @property
    def estimates(self) -> Estimates:
        """As the cost model counts: what does not depend on shards is one sum."""
        parts = (self.down_s, self.up_s, self.rest_s)
        fixed_s = Estimate(
            np.sum([part.mean for part in parts]),
            np.sqrt(np.sum([part.spread**2 for part in parts])),
            np.min([part.count for part in parts]),
        )
        return Estimates(self.train_s, self.ship_s, fixed_s)

    def costs(self) -> Floats:
        """To report: costs by parts, in the order that events have."""
        three = [getattr(self.estimates, field.name) for field in fields(Estimates)]
        return np.array([[cost.mean, cost.spread, cost.count] for cost in three])


def per(seconds: float, count: float) -> float:
    """Seconds for one, NaN where there was none."""
    return seconds / count if count else nan

"""The disclosure of a scheme: costs, bounds or nothing. Without NumPy, for light processes."""

from typing import Final, Literal

Disclosure = Literal["nothing", "bounds", "costs"]
"""The most that a learner discloses before its update."""
DISCLOSURE: Final = {
    "nothing": "nothing",
    "bounds": "number of shards wanted",
    "costs": "train_s, ship_s and fixed_s, each with its spread",
    "radio": "slope_s, base_s and threshold of a gradient, apply_s, and the rates of its link",
}
"""Data that a scheme needs from a learner before its update, from the least to the most."""

"""The figures of a comparison as text: their names and units."""

from math import floor, isfinite, isnan, log10

from melisma.simulation.comparison.comparison import Comparison
from melisma.simulation.comparison.interval import Interval

MAX_DIGITS = 4
SCALES = {
    "s": ((1.0, "s"),),
    "": ((1.0, ""),),
    "visits": ((1e6, "M"), (1.0, "")),
    "visits/s": ((1e6, "M visits/s"), (1.0, "visits/s")),
    "%": ((0.01, "%"),),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
}
TIME_FIGURES = {
    "accuracy_s": ("to accuracy", "s"),
    "training_s": ("training", "s"),
    "run_s": ("run", "s"),
    "outside_share": ("outside", "%"),
    "deadline_misses": ("misses", ""),
    "accuracy": ("accuracy", "%"),
    "loss": ("loss", ""),
}
WORK_FIGURES = {
    "capacity_used": ("capacity", "%"),
    "max_staleness": ("staleness", ""),
    "average_staleness": ("average", ""),
    "visits_per_s": ("visits per s", "visits"),
    "visits_counted": ("visits", "visits"),
    "visits_dropped": ("dropped", "visits"),
    "bytes": ("bytes", "B"),
    "joules": ("energy", "J"),
    "cost": ("cost", ""),
}
# Zero unless the fleet gives energy, so hidden then.
HIDDEN_IF_ZERO = ("joules",)


def is_shown(comparison: Comparison, figure: str) -> bool:
    """Return whether a figure is known, and worth a column."""
    if figure == "accuracy_s":
        return bool(comparison.target)
    if figure == "cost" and not comparison.has_prices:
        return False
    means = [comparison.interval(scheme, figure).mean for scheme in comparison.schemes]
    if figure in HIDDEN_IF_ZERO:
        return any(isfinite(mean) and mean > 0 for mean in means)
    return any(isfinite(mean) for mean in means)


def format_interval(interval: Interval, unit: str, largest: float | None = None) -> str:
    """Format mean and half width, in the unit that suits the largest value of the column."""
    if not interval.known:
        return "-"
    size = abs(interval.mean) if largest is None else largest
    scales = SCALES[unit]
    scale, name = next((row for row in scales if size >= row[0]), scales[-1])
    mean, half_width = interval.mean / scale, interval.half_width / scale
    decimals = _decimals(mean, half_width)
    return f"{mean:,.{decimals}f} ± {_format_half_width(half_width, decimals)} {name}".rstrip()


def _format_half_width(half_width: float, decimals: int) -> str:
    if isnan(half_width):
        return "?"
    return f"{half_width:,.{decimals}f}" if half_width else "0"


def _decimals(mean: float, half_width: float) -> int:
    """Return the decimals for two digits of the half width, up to `MAX_DIGITS` of the mean."""
    if mean == round(mean) and (half_width == 0 or isnan(half_width)):
        return 0
    most = MAX_DIGITS - 1 - floor(log10(max(abs(mean), 1e-3)))
    wanted = 1 - floor(log10(half_width)) if half_width > 0 else most
    return max(0, min(most, wanted))

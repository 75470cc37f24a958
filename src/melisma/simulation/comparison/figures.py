"""The figures of a comparison as people read them: what they are called, and in which units."""

from math import floor, isfinite, isnan, log10

from melisma.simulation.comparison.comparison import Comparison, Interval

DIGITS = 4
SCALES = {
    "s": ((1.0, "s"),),
    "": ((1.0, ""),),
    "samples": ((1e6, "M"), (1.0, "")),
    "%": ((0.01, "%"),),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
}
TIME_FIGURES = {
    "accuracy_s": ("to accuracy", "s"),
    "training_s": ("training", "s"),
    "run_s": ("run", "s"),
    "deadline_misses": ("misses", ""),
    "accuracy": ("accuracy", "%"),
    "loss": ("loss", ""),
}
WORK_FIGURES = {
    "max_staleness": ("staleness", ""),
    "average_staleness": ("average", ""),
    "samples_trained": ("trained", "samples"),
    "samples_dropped": ("dropped", "samples"),
    "bytes": ("bytes", "B"),
    "joules": ("energy", "J"),
    "cost": ("cost", ""),
}
# Nothing is told of them in a fleet that says nothing of them.
UNLESS_ZERO = ("joules", "cost")


def is_shown(found: Comparison, figure: str) -> bool:
    """Whether a figure is known; where all of it is zero, some say nothing."""
    if figure == "accuracy_s":
        return bool(found.target)
    means = [found.interval(scheme, figure).mean for scheme in found.schemes]
    least = figure not in UNLESS_ZERO
    return any(isfinite(each) and (least or each > 0) for each in means)


def format_interval(interval: Interval, unit: str, largest: float | None = None) -> str:
    """A mean and its half width, in the unit that suits the largest of its column."""
    if not interval.known:
        return "-"
    size = abs(interval.mean) if largest is None else largest
    scales = SCALES[unit]
    scale, name = next((each for each in scales if size >= each[0]), scales[-1])
    middle, half = interval.mean / scale, interval.half_width / scale
    places = _places(middle, half)
    return f"{middle:,.{places}f} ± {_half(half, places)} {name}".rstrip()


def _half(half: float, places: int) -> str:
    if isnan(half):
        return "?"
    return f"{half:,.{places}f}" if half else "0"


def _places(middle: float, half: float) -> int:
    """Decimals: two digits of the half width, but no more than `DIGITS` of the mean."""
    if middle == round(middle) and (half == 0 or isnan(half)):
        return 0
    most = DIGITS - 1 - floor(log10(max(abs(middle), 1e-3)))
    wanted = 1 - floor(log10(half)) if half > 0 else most
    return max(0, min(most, wanted))

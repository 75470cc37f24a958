"""The tables of FLEET.toml: single learners, groups of learners, and their radio cell."""

from math import inf, isclose
from typing import Annotated, Literal

from msgspec import Meta

from melisma.disclosure import Disclosure
from melisma.errors import suggest
from melisma.fleet.day_hours import parse_clock, parse_hours
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.files.spread import Distribution, check_spread
from melisma.fleet.observed_states import ProbabilitySource
from melisma.fleet.stressors import check_stressor
from melisma.fleet.tables import (
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Seed,
    Table,
)
from melisma.fleet.task import check_name
from melisma.prices import MAX_PRICE

Probability = Annotated[float, Meta(ge=0, le=1)]
SPEEDS = ("compute", "train_s", "samples_per_s", "clock_hz")
RATES = ("bandwidth_bps", "downlink_bps", "uplink_bps")
# More would not fit into memory.
MAX_LEARNERS = 10_000_000
MemberCount = Annotated[int, Meta(ge=1, le=MAX_LEARNERS)]
Decibels = Annotated[float, Meta(ge=-300, le=300)]
Price = Annotated[float, Meta(ge=0, le=MAX_PRICE)]
Budget = Annotated[float, Meta(ge=0)]
PriceLimit = Annotated[float, Meta(ge=0)]
# Shorter times average out within a batch.
CorrelationTime = Annotated[float, Meta(ge=0.01, le=1e12)]


class StateTable(Table, frozen=True, kw_only=True):
    """An operating state: its probability, and the shares of compute and bandwidth left in it.

    Live devices run its stressor instead, if it has one.
    """

    probability: Probability
    compute: Positive = 1.0
    bandwidth: Positive = 1.0
    stress: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown stressor."""
        check_stressor(self.stress)


class EnergyTable(Table, frozen=True, kw_only=True):
    """Energy in joules to train one sample once, and to send or receive one byte."""

    sample_j: NonNegative = 0.0
    byte_j: NonNegative = 0.0


class NoiseTable(Table, frozen=True, kw_only=True):
    """Random changes during a run: relative standard deviations of speed and link.

    Both are drawn anew every `correlation_s` seconds. Only simulated learners use `benchmark_bias`
    and `cold_start_s`, since live ones have their own.
    """

    compute: NonNegative = 0.0
    bandwidth: NonNegative = 0.0
    correlation_s: CorrelationTime = 30.0
    benchmark_bias: Positive = 1.0
    cold_start_s: NonNegative = 0.0


class AvailabilityTable(Table, frozen=True, kw_only=True):
    """Times at which a device joins and leaves, and its mean spans awake and asleep.

    Without `leaves_s` it stays; without `awake_s` and `asleep_s` it never sleeps. It is present in
    its `hours` of each day, and as long as its battery, of `battery_j` joules, is not empty.
    """

    joins_s: NonNegative = 0.0
    leaves_s: Positive | None = None
    awake_s: Positive | None = None
    asleep_s: Positive | None = None
    hours: str | None = None
    battery_j: Positive | None = None
    recharge_w: NonNegative = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError if the device leaves before it joins, or one mean span is missing."""
        if self.leaves_s is not None and self.leaves_s <= self.joins_s:
            raise ValueError(
                f"leaves_s is {self.leaves_s:g}; expected more than joins_s, {self.joins_s:g}"
            )
        if (self.awake_s is None) != (self.asleep_s is None):
            missing = "awake_s" if self.awake_s is None else "asleep_s"
            raise ValueError(f"awake_s and asleep_s are needed together; {missing} is missing")
        if self.hours is not None:
            parse_hours(self.hours)
            if self.joins_s or self.leaves_s is not None:
                other = "joins_s" if self.joins_s else "leaves_s"
                raise ValueError(f"hours and {other} exclude each other; keep one of them")
        if self.recharge_w and self.battery_j is None:
            raise ValueError("recharge_w needs battery_j")


class HardwareTable(Table, frozen=True, kw_only=True):
    """The speed and the link of a device: a profile, and keys that override it."""

    profile: str | None = None
    compute: Positive | None = None
    train_s: Positive | None = None
    samples_per_s: Positive | None = None
    clock_hz: Positive | None = None
    cycles_per_sample: Positive | None = None
    bandwidth_bps: Positive | None = None
    downlink_bps: Positive | None = None
    uplink_bps: Positive | None = None
    bandwidth_trace: str | None = None
    latency_s: NonNegative | None = None
    base_s: NonNegative = 0.0
    threshold: NonNegativeInt = 0
    energy: EnergyTable = EnergyTable()
    availability: AvailabilityTable = AvailabilityTable()
    noise: NoiseTable | None = None
    discloses: Disclosure = "costs"

    def __post_init__(self) -> None:
        """Raise ValueError unless the speed is given in exactly one way."""
        if self.profile is not None and self.profile not in PROFILES:
            raise ValueError(
                f"profile {self.profile!r} is unknown; {suggest(self.profile, PROFILES)}"
            )
        speeds = [name for name in SPEEDS if getattr(self, name) is not None]
        if len(speeds) > 1:
            raise ValueError(f"{' and '.join(speeds)} all give the speed; keep one of them")
        if not speeds and self.profile is None:
            raise ValueError(f"speed is missing: add a profile or one of {', '.join(SPEEDS)}")
        if self.cycles_per_sample is not None and self.clock_hz is None:
            raise ValueError("cycles_per_sample needs clock_hz")
        if None not in (self.bandwidth_bps, self.downlink_bps, self.uplink_bps):
            raise ValueError(
                "bandwidth_bps has no effect beside downlink_bps and uplink_bps; remove it"
            )
        rates = [name for name in RATES if getattr(self, name) is not None]
        if self.bandwidth_trace is not None and rates:
            raise ValueError(f"{rates[0]} has no effect beside bandwidth_trace; remove one of them")


class FleetLearner(HardwareTable, frozen=True, kw_only=True):
    """A single learner."""

    name: str
    price: Price = 1.0
    own_samples: PositiveInt | None = None
    state: tuple[StateTable, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid name, or probabilities that do not sum to 1."""
        super().__post_init__()
        check_name(self.name)
        total = sum(state.probability for state in self.state)
        if self.state and not isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"probabilities of the states sum to {total:g}; expected 1")


class PriceTable(Table, frozen=True, kw_only=True):
    """Prices drawn from a normal distribution and clipped to a range; no price is below 0.

    `sd` is the standard deviation: 0.5 in the code of the MED study, which prints 0.5 as variance.
    """

    mean: Price = 1.0
    sd: Price = 0.5
    low: Price = 0.0
    high: PriceLimit = inf

    def __post_init__(self) -> None:
        """Raise ValueError if the range is empty."""
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}; expected at most high, {self.high:g}")


class GroupStatesTable(Table, frozen=True, kw_only=True):
    """Operating states of a group; one, drawn for each learner, is more likely than the others.

    The lower the heat, the more likely it is.
    """

    compute: tuple[Positive, ...]
    bandwidth: tuple[Positive, ...]
    heat: Positive = 0.5
    stress: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless all lists have one item for each state."""
        if not self.compute or len(self.compute) != len(self.bandwidth):
            raise ValueError(
                f"compute has {len(self.compute)} factors and bandwidth {len(self.bandwidth)}; "
                "expected one factor for each state in both"
            )
        for name in self.stress or ():
            check_stressor(name)
        if self.stress is not None and len(self.stress) != len(self.compute):
            raise ValueError(
                f"stress has {len(self.stress)} names and compute {len(self.compute)} factors; "
                'expected one name for each state, "" for a state without a stressor'
            )


class SpreadTable(Table, frozen=True, kw_only=True):
    """Relative standard deviations within a group, and their distribution.

    `bandwidth_bps` is that of a factor of both directions of a link; `downlink_bps` and
    `uplink_bps` are those of further factors of one direction.
    """

    compute: NonNegative = 0.0
    bandwidth_bps: NonNegative = 0.0
    downlink_bps: NonNegative = 0.0
    uplink_bps: NonNegative = 0.0
    latency_s: NonNegative = 0.0
    distribution: Distribution = "lognormal"

    def __post_init__(self) -> None:
        """Raise ValueError if values could reach 0."""
        for name in ("compute", "bandwidth_bps", "downlink_bps", "uplink_bps", "latency_s"):
            check_spread(name, getattr(self, name), self.distribution)


class SamplesTable(Table, frozen=True, kw_only=True):
    """Samples on each device of a group: their mean, and relative standard deviation."""

    mean: Positive
    spread: NonNegative = 0.0
    distribution: Distribution = "lognormal"

    def __post_init__(self) -> None:
        """Raise ValueError if values could reach 0."""
        check_spread("spread", self.spread, self.distribution)


class FleetGroup(HardwareTable, frozen=True, kw_only=True):
    """A number of learners of one kind, with random differences."""

    count: MemberCount
    name: str | None = None
    spread: SpreadTable = SpreadTable()
    price: Price | PriceTable = 1.0
    own_samples: PositiveInt | SamplesTable | None = None
    states: GroupStatesTable | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid name."""
        super().__post_init__()
        if self.name is not None:
            check_name(self.name)


class CellTable(Table, frozen=True, kw_only=True):
    """A radio cell around the orchestrator, for learners whose rates are not given."""

    radius_m: Positive
    bandwidth_hz: Positive
    power_dbm: Decibels
    noise_dbm_per_hz: Decibels = -174.0
    path_loss: Literal["attenuation", "urban"] = "urban"
    fading: Literal["rayleigh", "none"] = "rayleigh"
    placement: Literal["uniform", "edge"] = "uniform"


class OrchestratorTable(Table, frozen=True, kw_only=True):
    """The link of the orchestrator, which all learners share; by default it is never slower."""

    bandwidth_bps: Positive | None = None
    uplink_bps: Positive | None = None
    downlink_bps: Positive | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if a rate has no effect."""
        if None not in (self.bandwidth_bps, self.downlink_bps, self.uplink_bps):
            raise ValueError(
                "bandwidth_bps has no effect beside downlink_bps and uplink_bps; remove it"
            )


class FleetTable(Table, frozen=True, kw_only=True):
    """The learners of a fleet and the settings that they share."""

    learner: tuple[FleetLearner, ...] = ()
    group: tuple[FleetGroup, ...] = ()
    cell: CellTable | None = None
    orchestrator: OrchestratorTable = OrchestratorTable()
    budget: Budget = inf
    core_ops_per_s: Positive | None = None
    trace: str | None = None
    starts_at: str | None = None
    noise: NoiseTable | None = None
    state_probabilities: ProbabilitySource = "given"
    seed: Seed = 1

    def __post_init__(self) -> None:
        """Raise ValueError if there are no learners."""
        if not self.learner and not self.group:
            raise ValueError("has no learners: add [[fleet.learner]] or [[fleet.group]]")
        if self.starts_at is not None:
            parse_clock("starts_at", self.starts_at)
        elif any(device.availability.hours for device in (*self.learner, *self.group)):
            raise ValueError('availability.hours needs starts_at, such as starts_at = "18:00"')


class FleetFile(Table, frozen=True, kw_only=True):
    """FLEET.toml."""

    fleet: FleetTable

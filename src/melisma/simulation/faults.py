"""Faults: parse and format them as text, draw random ones, and apply those of devices.

::

    crash 2 at 3.5 for 4            the device stops and restarts after 4 s; without `for`, never
    vanish 2 at 3.5 for 4           the same with an empty disk, and only its silence is noticed
    slow 1 at 2 for 10 by 3         work begun in these 10 s computes 3 times slower
    partition 0,3 at 5 for 2        messages to and from these learners wait until the end
    clock 1 by 1.05                 the clock of learner 1 runs 1.05 times too fast
    lose instruction 2 to 1         the second message to learner 1 is lost
    lose report 2 from 1            the second message from learner 1 is lost
    duplicate report 1 from 0 by 3  the message arrives a second time, 3 s later
    delay instruction 3 to 2 by 1.5 the message arrives 1.5 s later
    corrupt update 1 from 2         the first update of learner 2 holds NaN
    greedy less 2                   learner 2 trains a part of what it reports; also with `speed`,
                                    `ask`, `noise` and `copy`

    crash orchestrator at 9 for 5   its process ends, and another goes on from the journal 5 s later
    cut power at 9 for 5            the same, and of what was written but not synced some is lost
    fail sync at 9 for 5            its disk reports an error when it is told to sync
    fill disk at 9 for 5            its disk is full
    misdirect write 12              the twelfth write to a file of the journal goes to another place
    rot journal at 9                a bit of the journal flips
    rot update 2 from 1             a bit of the second update of learner 1 flips on the disk

The orchestrator also crashes, and loses power, `at step 40`: when the fortieth event was written to
its journal, and before all instructions that follow from it were sent.

Learners go by number, by name if that has no spaces and commas and is no number, by a pattern
(`pi-*`), or by the name of their group; `all` are all of them. `crash 10% of phone at 30` hits one
in ten, drawn by the seed of the fleet. Times are seconds since the start of the run, and messages
are counted from 1 for each learner. Faults are separated by `;`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError, suggest
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.simulation.fault_targets import FaultTargets

LearnerFaultKind = Literal[
    "crash", "vanish", "slow", "partition", "clock", "lose", "duplicate", "delay", "corrupt"
]
StopKind = Literal["crash orchestrator", "cut power"]
GreedyKind = Literal["greedy"]
Greed = Literal["", "speed", "ask", "less", "noise", "copy"]
DiskFaultKind = Literal["fail sync", "fill disk", "misdirect write", "rot journal", "rot update"]
FaultKind = Literal[LearnerFaultKind, GreedyKind, StopKind, DiskFaultKind]
MessageKind = Literal["", "instruction", "report", "update"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
LEARNER_KINDS: tuple[LearnerFaultKind, ...] = get_args(LearnerFaultKind)
GREEDY: GreedyKind = "greedy"
STOP_KINDS: tuple[StopKind, ...] = get_args(StopKind)
DISK_KINDS: tuple[DiskFaultKind, ...] = get_args(DiskFaultKind)
DAMAGE_KINDS: tuple[FaultKind, ...] = ("misdirect write", "rot journal")
"""Faults after which a run may refuse to go on."""
MAX_RANDOM_FAULTS = 12
MAX_RANDOM_STOPS = 4
WRITES_PER_STEP = 6  # to files of the journal, about
MAX_NAMED = 20
BOAST = 2.0  # the speed that a greedy learner claims, in its own

_NUMBER = r"(?P<{}>[0-9.]+(?:e[+-]?[0-9]+)?)"
_AT, _FOR, _BY = (_NUMBER.format(name) for name in ("at_s", "for_s", "by"))
_PERCENT = r"(?:(?P<percent>[0-9]+(?:\.[0-9]+)?)% of )?"
_LEARNERS = rf"{_PERCENT}(?P<learners>[^ ,]+(?:,[^ ,]+)*)"
_NTH = r"(?P<nth>[1-9][0-9]*)"
# Instructions travel to learners, reports come from them.
_DIRECTION = r"instruction(?= [0-9]+ to )|report(?= [0-9]+ from )"
_MESSAGE = rf"(?P<message>{_DIRECTION}) {_NTH} (?:to|from) {_LEARNERS}"
_ORCHESTRATOR_PATTERNS = (
    rf"(?P<kind>crash orchestrator|cut power) at (?:step {_NTH}|{_AT}) for {_FOR}",
    rf"(?P<kind>fail sync|fill disk) at {_AT} for {_FOR}",
    rf"(?P<kind>misdirect write) {_NTH}",
    rf"(?P<kind>rot journal) at {_AT}",
    rf"(?P<kind>rot update) {_NTH} from {_LEARNERS}",
)
_PATTERNS = (
    rf"(?P<kind>crash|vanish) {_LEARNERS} at {_AT}(?: for {_FOR})?",
    rf"(?P<kind>slow) {_LEARNERS} at {_AT} for {_FOR} by {_BY}",
    rf"(?P<kind>partition) {_LEARNERS} at {_AT} for {_FOR}",
    rf"(?P<kind>clock) {_LEARNERS} by {_BY}",
    rf"(?P<kind>lose) {_MESSAGE}",
    rf"(?P<kind>duplicate|delay) {_MESSAGE} by {_BY}",
    rf"(?P<kind>greedy) (?P<greed>speed|ask|less|noise|copy) {_LEARNERS}",
    rf"(?P<kind>corrupt) (?P<message>update) {_NTH} from {_LEARNERS}",
)


@dataclass(frozen=True)
class Fault:
    """One fault; fields that its kind does not use keep their defaults.

    `nth` counts messages, updates, writes or steps. `greed` says how a greedy learner cheats, in
    the whole run: it claims more speed than it has, asks for more than it trains, trains less than
    it reports, returns old parameters plus noise, or copies the update of another. `selection` is
    the text by which many learners were chosen, as in `10% of phone`.
    """

    kind: FaultKind
    learners: tuple[int, ...]
    at_s: float = 0.0
    for_s: float | None = None
    by: float = 1.0
    message: MessageKind = ""
    nth: int = 0
    greed: Greed = ""
    selection: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raise `SettingError` if the kind is unknown: a driver would ignore the fault."""
        if self.kind not in FAULT_KINDS:
            raise SettingError(
                f"unknown kind of fault {self.kind!r}; {suggest(self.kind, FAULT_KINDS)}"
            )

    @property
    def of_orchestrator(self) -> bool:
        """Whether the fault hits the orchestrator or its disk."""
        return self.kind not in (*LEARNER_KINDS, GREEDY)

    @property
    def end_s(self) -> float:
        """When a fault that lasts for a while ends."""
        return self.at_s + (self.for_s or 0.0)

    @overload
    def is_active(self, at_s: float) -> bool: ...
    @overload
    def is_active(self, at_s: Floats) -> Bools: ...
    def is_active(self, at_s: float | Floats) -> bool | Bools:
        """Return whether the fault lasts at a time, or at each of several times."""
        return (at_s >= self.at_s) & (at_s < self.end_s)

    def __str__(self) -> str:
        return self.describe(",".join(map(str, self.learners)))

    def describe(self, learners: str) -> str:
        """Return the fault as text, with these words for its learners."""
        if self.of_orchestrator:
            return self._describe_orchestrator(learners)
        if self.message:
            way = "to" if self.message == "instruction" else "from"
            by = f" by {self.by:.6g}" if self.kind in ("duplicate", "delay") else ""
            return f"{self.kind} {self.message} {self.nth} {way} {learners}{by}"
        if self.kind == GREEDY:
            return f"{self.kind} {self.greed} {learners}"
        if self.kind == "clock":
            return f"clock {learners} by {self.by:.6g}"
        span = "" if self.for_s is None else f" for {self.for_s:.6g}"
        by = f" by {self.by:.6g}" if self.kind == "slow" else ""
        return f"{self.kind} {learners} at {self.at_s:.6g}{span}{by}"

    def _describe_orchestrator(self, learners: str) -> str:
        if self.kind == "misdirect write":
            return f"{self.kind} {self.nth}"
        if self.kind == "rot update":
            return f"{self.kind} {self.nth} from {learners}"
        when = f"step {self.nth}" if self.nth else f"{self.at_s:.6g}"
        span = "" if self.for_s is None else f" for {self.for_s:.6g}"
        return f"{self.kind} at {when}{span}"


def parse_faults(text: str, targets: FaultTargets | int) -> tuple[Fault, ...]:
    """Parse faults separated by `;`; raise `SettingError` that names the first invalid one.

    `targets` are the learners that they may name, or the number of learners without names.
    """
    known = FaultTargets(targets) if isinstance(targets, int) else targets
    return tuple(_parse(part.strip(), known) for part in text.split(";") if part.strip())


def _parse(text: str, targets: FaultTargets) -> Fault:
    of_orchestrator = text.startswith((*STOP_KINDS, *DISK_KINDS))
    for pattern in _ORCHESTRATOR_PATTERNS if of_orchestrator else _PATTERNS:
        if match := re.fullmatch(pattern, text):
            groups = match.groupdict()
            words, percent = groups.pop("learners", None) or "", groups.pop("percent", None)
            numbers = targets.find(text, words, percent) if words else ()
            fault = _from_groups(text, numbers, groups)
            return replace(fault, selection=f"{percent}% of {words}" if percent else words)
    kind = text.split(maxsplit=1)[0]
    if kind not in (known_kinds := sorted({kind.split()[0] for kind in FAULT_KINDS})):
        raise SettingError(
            f"invalid fault {text!r}: unknown kind {kind!r}; {suggest(kind, known_kinds)}"
        )
    examples = "'crash 2 at 3.5 for 4', 'slow 1 at 2 for 10 by 3', 'lose report 2 from 1'"
    if of_orchestrator:
        examples = "'crash orchestrator at 9 for 5', 'cut power at step 40 for 5'"
    raise SettingError(f"invalid fault {text!r}; use, for example, {examples} or 'clock 1 by 1.05'")


def _from_groups(text: str, learners: tuple[int, ...], groups: dict[str, str | None]) -> Fault:
    words = {name: groups.pop(name) for name in ("kind", "message", "greed") if groups.get(name)}
    try:
        numbers = {name: float(value) for name, value in groups.items() if value is not None}
    except ValueError:
        raise SettingError(f"fault {text!r}: invalid number") from None
    if "nth" in numbers:
        words["nth"] = int(numbers.pop("nth"))  # type: ignore[assignment]
    if not all(map(isfinite, numbers.values())):
        raise SettingError(f"fault {text!r}: a number is too large")
    fault = Fault(learners=learners, **words, **numbers)  # type: ignore[arg-type]
    if fault.kind in ("slow", "clock") and not 0.01 <= fault.by <= 100:
        raise SettingError(f"fault {text!r}: by {fault.by:g}; expected 0.01 to 100")
    return fault


def format_faults(faults: tuple[Fault, ...], targets: FaultTargets | None = None) -> str:
    """Format faults such that `parse_faults` returns the same ones, by the names of `targets`.

    More than `MAX_NAMED` learners that were chosen together keep the words of their choice.
    """

    def words(fault: Fault) -> str:
        if fault.selection and len(fault.learners) > MAX_NAMED:
            return fault.selection
        name = str if targets is None else targets.name
        return ",".join(map(name, fault.learners))

    return "; ".join(fault.describe(words(fault)) for fault in faults)


def random_faults(
    rng: np.random.Generator, learners: int, until_s: float, most: int = MAX_RANDOM_FAULTS
) -> tuple[Fault, ...]:
    """Draw 1 to `most` faults of learners of any kind within the first `until_s` seconds."""
    count = int(rng.integers(1, most + 1))
    return tuple(_random_fault(rng, learners, until_s) for _ in range(count))


def _random_fault(rng: np.random.Generator, learners: int, until_s: float) -> Fault:
    kind = str(rng.choice(LEARNER_KINDS))
    learner = (int(rng.integers(learners)),)
    at_s, for_s = (_round(rng.uniform(0, until_s) * share) for share in (1.0, 0.3))
    nth = int(rng.integers(1, 9))
    match kind:
        case "crash" | "vanish":
            return Fault(kind, learner, at_s, for_s if rng.random() < 0.7 else None)
        case "slow":
            return Fault(kind, learner, at_s, for_s, by=_round(rng.uniform(1.2, 10)))
        case "partition":
            members = rng.permutation(learners)[: int(rng.integers(1, learners + 1))]
            return Fault(kind, tuple(sorted(members.tolist())), at_s, for_s)
        case "clock":
            return Fault(kind, learner, by=_round(rng.uniform(0.8, 1.25)))
        case "corrupt":
            return Fault(kind, learner, message="update", nth=min(nth, 4))
        case "lose" | "duplicate" | "delay":
            message: MessageKind = "instruction" if rng.random() < 0.5 else "report"
            by = 1.0 if kind == "lose" else _round(rng.exponential(0.2 * until_s))
            return Fault(kind, learner, by=by, message=message, nth=nth)
    raise AssertionError(kind)


def random_orchestrator_faults(
    rng: np.random.Generator, learners: int, until_s: float, steps: int, *, disk: bool
) -> tuple[Fault, ...]:
    """Draw 1 to `MAX_RANDOM_STOPS` stops of the orchestrator, and up to as many disk faults.

    They are within the first `until_s` seconds, or the first `steps` steps. Without `disk`, its
    process crashes and its disk has no faults.
    """
    count = int(rng.integers(1, MAX_RANDOM_STOPS + 1))
    stops = [_random_stop(rng, until_s, steps) for _ in range(count)]
    if not disk:
        return tuple(replace(stop, kind="crash orchestrator") for stop in stops)
    count = int(rng.integers(len(stops) + 1)) if rng.random() < 0.5 else 0
    return (*stops, *(_random_disk_fault(rng, learners, until_s, steps) for _ in range(count)))


def _random_stop(rng: np.random.Generator, until_s: float, steps: int) -> Fault:
    kind = STOP_KINDS[int(rng.integers(len(STOP_KINDS)))]
    # Short and long ones alike.
    for_s = _round(until_s * 10 ** rng.uniform(-3, 0))
    if rng.random() < 0.5:
        return Fault(kind, (), nth=int(rng.integers(1, steps + 1)), for_s=for_s)
    return Fault(kind, (), at_s=_round(rng.uniform(0, until_s)), for_s=for_s)


def _random_disk_fault(
    rng: np.random.Generator, learners: int, until_s: float, steps: int
) -> Fault:
    kind = str(rng.choice(DISK_KINDS))
    at_s, for_s = (_round(rng.uniform(0, until_s) * share) for share in (1.0, 0.3))
    match kind:
        case "fail sync" | "fill disk":
            return Fault(kind, (), at_s, for_s)
        case "misdirect write":
            return Fault(kind, (), nth=int(rng.integers(1, WRITES_PER_STEP * steps)))
        case "rot journal":
            return Fault(kind, (), at_s)
        case "rot update":
            return Fault(kind, (int(rng.integers(learners)),), nth=int(rng.integers(1, 5)))
    raise AssertionError(kind)


def _round(number: float) -> float:
    """Keep 4 digits, which `format_faults` writes without loss."""
    return float(f"{number:.4g}")


def greedy_learners(faults: Sequence[Fault]) -> dict[int, Greed]:
    """Return how each greedy learner cheats."""
    return {n: fault.greed for fault in faults if fault.kind == GREEDY for n in fault.learners}


class Slowness:
    """The factor by which `slow` faults slow a learner down at a given time."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = [fault for fault in faults if fault.kind == "slow"]
        greedy = greedy_learners(faults)
        self._boasting = [learner for learner, greed in greedy.items() if greed == "speed"]

    def __call__(self, learners: Ints, at_s: Floats) -> Floats:
        factor = np.ones(learners.size)
        for fault in self._faults:
            factor[np.isin(learners, fault.learners) & fault.is_active(at_s)] *= fault.by
        if self._boasting:
            # Everybody believes the claim: the learner reports more work than it did.
            factor[np.isin(learners, self._boasting)] /= BOAST
        return factor


class Corruption:
    """Marks the updates that `corrupt` faults fill with NaN, counted in order of arrival."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        corrupt = [fault for fault in faults if fault.kind == "corrupt"]
        self._hit = {(learner, fault.nth) for fault in corrupt for learner in fault.learners}
        self._arrivals: Counter[int] = Counter()

    def __call__(self, learners: Ints, visits: Ints) -> NDArray[np.bool_]:
        corrupt = np.zeros(learners.size, np.bool_)
        for index in np.flatnonzero(visits).tolist() if self._hit else ():
            learner = int(learners[index])
            self._arrivals[learner] += 1
            corrupt[index] = (learner, self._arrivals[learner]) in self._hit
        return corrupt


def clock_rates(faults: Sequence[Fault], learners: int) -> Floats:
    """Return the seconds that pass on each learner's clock in one second."""
    rates = np.ones(learners)
    for fault in faults:
        if fault.kind == "clock":
            rates[list(fault.learners)] *= fault.by
    return rates

"""What goes wrong, as words that can be written down, and read again.

::

    crash 2 at 3.5 for 4         the device stops, and begins anew after 4 s; without `for`, never
    vanish 2 at 3.5 for 4        the same, and nobody notices that it is gone
    slow 1 at 2 for 10 by 3      it computes 3 times slower in what it begins in that time
    partition 0,3 at 5 for 2       nothing gets through to or from these; it comes when that is over
    clock 1 by 1.05              its clock runs so many times too fast
    lose order 2 to 1            the second message to it does not arrive
    lose report 2 from 1         or from it
    duplicate report 1 from 0 by 3  it arrives a second time, so many seconds later
    delay order 3 to 2 by 1.5    it arrives so many seconds later
    corrupt update 1 from 2      its first update holds what is no number

Learners go by number, times are seconds from the beginning of the run, and messages are counted for
each learner from 1. Faults are separated by `;`.
"""

import re
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

from melisma.errors import SettingError

Kind = Literal[
    "crash", "vanish", "slow", "partition", "clock", "lose", "duplicate", "delay", "corrupt"
]
Message = Literal["", "order", "report", "update"]
TIME = r"(?P<{}>[0-9.]+(?:e[+-]?[0-9]+)?)"
AT, FOR, BY = (TIME.format(name) for name in ("at_s", "for_s", "by"))
WHO, NTH = r"(?P<who>[0-9]+(?:,[0-9]+)*)", r"(?P<nth>[1-9][0-9]*)"
SENT = rf"(?P<message>order|report) {NTH} (?:to|from) {WHO}"
FORMS = (
    rf"(?P<kind>crash|vanish) {WHO} at {AT}(?: for {FOR})?",
    rf"(?P<kind>slow) {WHO} at {AT} for {FOR} by {BY}",
    rf"(?P<kind>partition) {WHO} at {AT} for {FOR}",
    rf"(?P<kind>clock) {WHO} by {BY}",
    rf"(?P<kind>lose) {SENT}",
    rf"(?P<kind>duplicate|delay) {SENT} by {BY}",
    rf"(?P<kind>corrupt) (?P<message>update) {NTH} from {WHO}",
)


@dataclass(frozen=True)
class Fault:
    """One of them; what its kind has no use for is left as it is."""

    kind: Kind
    learners: tuple[int, ...]
    at_s: float = 0.0
    for_s: float | None = None
    by: float = 1.0
    message: Message = ""
    nth: int = 0

    def __str__(self) -> str:
        who = ",".join(map(str, self.learners))
        if self.message:
            way = "to" if self.message == "order" else "from"
            by = f" by {self.by:.6g}" if self.kind in ("duplicate", "delay") else ""
            return f"{self.kind} {self.message} {self.nth} {way} {who}{by}"
        if self.kind == "clock":
            return f"clock {who} by {self.by:.6g}"
        span = "" if self.for_s is None else f" for {self.for_s:.6g}"
        by = f" by {self.by:.6g}" if self.kind == "slow" else ""
        return f"{self.kind} {who} at {self.at_s:.6g}{span}{by}"


def parse_faults(text: str, learners: int) -> tuple[Fault, ...]:
    """Faults from words; `SettingError` names the one that makes no sense."""
    return tuple(_read(part.strip(), learners) for part in text.split(";") if part.strip())


def format_faults(faults: tuple[Fault, ...]) -> str:
    """As `read_faults` reads them."""
    return "; ".join(map(str, faults))


def _read(text: str, learners: int) -> Fault:
    if "orchestrator" in text.split():
        raise SettingError(f"fault {text!r}: the orchestrator keeps no journal yet to go on from")
    for form in FORMS:
        if found := re.fullmatch(form, text):
            fault = _made(text, found.groupdict())
            absent = [number for number in fault.learners if number >= learners]
            if absent:
                raise SettingError(
                    f"fault {text!r}: there is no learner {absent[0]}, but 0 to {learners - 1}"
                )
            return fault
    raise SettingError(
        f"fault {text!r} makes no sense; for example: 'crash 2 at 3.5 for 4', 'slow 1 at 2 for 10 "
        "by 3', 'lose report 2 from 1', 'clock 1 by 1.05'"
    )


def _made(text: str, said: dict[str, str | None]) -> Fault:
    who = tuple(int(number) for number in (said.pop("who") or "").split(","))
    words = {name: said.pop(name) for name in ("kind", "message") if said.get(name)}
    try:
        numbers = {name: float(value) for name, value in said.items() if value is not None}
    except ValueError:
        raise SettingError(f"fault {text!r}: a number that is none") from None
    if "nth" in numbers:
        words["nth"] = int(numbers.pop("nth"))  # type: ignore[assignment]
    if not all(map(isfinite, numbers.values())):
        raise SettingError(f"fault {text!r}: a number that is too large")
    fault = Fault(learners=who, **words, **numbers)  # type: ignore[arg-type]
    if fault.kind in ("slow", "clock") and not 0.01 <= fault.by <= 100:
        raise SettingError(f"fault {text!r}: by {fault.by:g}; expected 0.01 to 100")
    return fault


def random_faults(
    rng: np.random.Generator, learners: int, until_s: float, most: int = 12
) -> tuple[Fault, ...]:
    """Up to so many faults of any kind in a run of that length."""
    return tuple(_drawn(rng, learners, until_s) for _ in range(int(rng.integers(1, most + 1))))


def _drawn(rng: np.random.Generator, learners: int, until_s: float) -> Fault:
    kind = str(rng.choice(DRAWN))
    who = (int(rng.integers(learners)),)
    at_s, for_s = (_rounded(rng.uniform(0, until_s) * part) for part in (1.0, 0.3))
    nth = int(rng.integers(1, 9))
    match kind:
        case "crash" | "vanish":
            return Fault(kind, who, at_s, for_s if rng.random() < 0.7 else None)
        case "slow":
            return Fault(kind, who, at_s, for_s, by=_rounded(rng.uniform(1.2, 10)))
        case "partition":
            several = rng.permutation(learners)[: int(rng.integers(1, learners + 1))]
            return Fault(kind, tuple(sorted(several.tolist())), at_s, for_s)
        case "clock":
            return Fault(kind, who, by=_rounded(rng.uniform(0.8, 1.25)))
        case "corrupt":
            return Fault(kind, who, message="update", nth=min(nth, 4))
        case "lose" | "duplicate" | "delay":
            way: Message = "order" if rng.random() < 0.5 else "report"
            by = 1.0 if kind == "lose" else _rounded(rng.exponential(0.2 * until_s))
            return Fault(kind, who, by=by, message=way, nth=nth)
    raise AssertionError(kind)


DRAWN = ("crash", "vanish", "slow", "partition", "clock", "lose", "duplicate", "delay", "corrupt")


def _rounded(number: float) -> float:
    """Few enough digits to be written down as it is."""
    return float(f"{number:.4g}")

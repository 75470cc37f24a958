"""Which updates are checked by re-execution: the less, the more of a learner's were right in a row.

The first ten checked updates of a learner are checked always, and after n right ones in a row every
update with probability 1 / n. A wrong one begins anew, and so does another version of the framework
or another kind of device. From a challenge to its verdict a learner has no trust: one that leaves
when it is challenged gains nothing.

The choice is a hash of the secret of the run, the cycle, the learner and the attempt: no learner
can foresee it, and the machine stays deterministic.

The statistics of the first filter are summed over the updates of each learner, older ones with less
weight, and compared with the median learner: one that is `SUSPICION` standard errors below what the
median learner would reach is suspected, and its next update is checked.
"""

import hashlib
from typing import Final

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.state import CycleState
from melisma.fleet.array_types import Floats, Ints
from melisma.learning.verification.reexecution import Verdict

ALWAYS_CHECKED: Final = 10
MEMORY: Final = 0.8  # weight of the statistic of an update after each further one
SUSPICION: Final = 4.0
MIN_LEARNERS: Final = 3  # to compare a learner with the median


def on_committed(state: CycleState, event: events.UpdatesCommitted) -> Commands:
    """Challenge those of the learners whose update is to be checked."""
    expected = state.expects(event.learners, event.cycle, event.attempts)
    learners, attempts = event.learners[expected], event.attempts[expected]
    names = [event.environments[row] for row in np.flatnonzero(expected).tolist()]
    segments = np.maximum(event.segments[expected], 1)
    table = state.learners
    _set_environments(state, learners, names)
    draws = _draws(state.secret, event.cycle, learners, attempts)
    trust = np.where(table.unanswered[learners] > 0, 0, table.right[learners])
    due = (trust < ALWAYS_CHECKED) | table.suspected[learners]
    due |= draws[0] * np.maximum(trust, 1) < 1
    chosen = (draws[1] * segments).astype(np.int64)[due]
    learners = learners[due]
    if not learners.size:
        return []
    # A learner commits once more if the orchestrator restarted before its upload.
    table.unanswered[learners[table.challenged[learners] != event.cycle]] += 1
    table.challenged[learners], table.segments[learners] = event.cycle, chosen
    return [
        commands.Challenge(
            reason="updates are checked by training a part of them once more",
            learners=learners,
            cycle=event.cycle,
            attempts=attempts[due],
            segments=chosen,
        )
    ]


def challenged_segment(state: CycleState, learner: int, cycle: int) -> int | None:
    """Return the segment of a learner's latest challenge; None if that is of another cycle."""
    table = state.learners
    return int(table.segments[learner]) if table.challenged[learner] == cycle else None


def _set_environments(state: CycleState, learners: Ints, names: list[str]) -> None:
    """Record what learners train with; a change costs them all trust."""
    table = state.learners
    known = {name: number for number, name in enumerate(state.environments, start=1)}
    for name in dict.fromkeys(names):
        if name not in known:
            state.environments.append(name)
            known[name] = len(state.environments)
    numbers = np.array([known[name] for name in names], np.int64)
    table.right[learners[table.environments[learners] != numbers]] = 0
    table.environments[learners] = numbers


def _draws(secret: str, cycle: int, learners: Ints, attempts: Ints) -> Floats:
    """Return two uniform numbers for each learner."""
    key, pairs = secret.encode()[:64], zip(learners.tolist(), attempts.tolist(), strict=True)
    digests = (
        hashlib.blake2b(f"{cycle} {learner} {attempt}".encode(), key=key, digest_size=16).digest()
        for learner, attempt in pairs
    )
    words = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    uniform: Floats = (words >> np.uint64(11)).T * 2.0**-53
    return uniform


def record_checks(state: CycleState, verified: events.VerifiedUpdates) -> Commands:
    """Raise or lower the trust in learners, and suspect those that fail the first filter."""
    table = state.learners
    verdicts = zip(
        verified.learners.tolist(),
        verified.cycles.tolist(),
        verified.verdicts.tolist(),
        strict=True,
    )
    for learner, cycle, verdict in verdicts:
        if verdict != Verdict.UNCHECKED:
            _record_verdict(state, learner, cycle, Verdict(verdict))
    known = np.isfinite(verified.gaps)
    learners = verified.learners[known]
    if not learners.size:
        return []
    for learner, gap in zip(learners.tolist(), verified.gaps[known].tolist(), strict=True):
        table.gaps[:, learner] *= (MEMORY, MEMORY**2, MEMORY)
        table.gaps[:, learner] += (gap, 1.0, 1.0)
    suspects = find_suspects(table.gaps, np.unique(learners))
    suspects = suspects[table.present[suspects]]
    if not suspects.size:
        return []
    table.suspected[suspects] = True
    table.gaps[:, suspects] = 0.0
    reason = "the loss on the shards that they were given falls no more than on others"
    return [commands.Suspect(reason=reason, learners=suspects)]


def _record_verdict(state: CycleState, learner: int, cycle: int, verdict: Verdict) -> None:
    table = state.learners
    unanswered = int(table.unanswered[learner])
    if cycle == table.challenged[learner]:
        # Challenges before the latest one will not be answered any more.
        if unanswered > 1:
            table.right[learner] = 0
        table.unanswered[learner] = 0
    else:
        table.unanswered[learner] = max(unanswered - 1, 0)
    if verdict is Verdict.RIGHT:
        table.right[learner] += 1
    elif verdict is Verdict.WRONG:
        table.right[learner] = 0
    if verdict is not Verdict.IMPOSSIBLE:
        table.suspected[learner] = False
        table.gaps[:, learner] = 0.0 if verdict is Verdict.WRONG else table.gaps[:, learner]


def find_suspects(gaps: Floats, learners: Ints) -> Ints:
    """Return those of the learners whose statistic is far below that of the median learner."""
    known = np.flatnonzero(gaps[2] > 0)
    if known.size < MIN_LEARNERS:
        return learners[:0]
    usual = float(np.median(gaps[0, known] / gaps[2, known]))
    sums, variances, weights = gaps[:, learners]
    below = usual * weights - sums > SUSPICION * np.sqrt(variances)
    suspects: Ints = learners[below]
    return suspects

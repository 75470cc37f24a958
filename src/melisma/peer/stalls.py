"""The time for which a node waits for a neighbour that answers but makes no progress.

A neighbour has `patience_s` and 50 times the time that its next update is predicted to take, and
twice that if it reports that it waits for neighbours of its own, which have to be given up first.
After that this node no longer waits for it, but still applies its updates. A neighbour that makes
progress is waited for again, but not after the third time.
"""

from melisma.peer.neighbour import Neighbour

STALL_ROUNDS = 50.0
MAX_STALLS = 3


def stall_limit_s(neighbour: Neighbour, patience_s: float, predicted_s: float) -> float:
    """Return how long to wait for the next update of a neighbour."""
    limit_s = patience_s + STALL_ROUNDS * predicted_s
    return 2 * limit_s if neighbour.waiting else limit_s


def stall(neighbour: Neighbour) -> None:
    """Do not wait for a neighbour any more."""
    neighbour.stalled = True
    neighbour.stalls += 1


def resume(neighbour: Neighbour) -> bool:
    """Wait again for a neighbour that makes progress; return whether it was stalled."""
    if not neighbour.stalled or neighbour.stalls >= MAX_STALLS:
        return False
    neighbour.stalled = False
    return True

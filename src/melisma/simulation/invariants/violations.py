"""The error that a violated invariant raises."""

from melisma.errors import MelismaError


class InvariantError(MelismaError):
    """An invariant of a run is violated."""


def expect(holds: object, violation: str) -> None:
    """Raise `InvariantError` with the violation unless the condition holds."""
    if not holds:
        raise InvariantError(violation)

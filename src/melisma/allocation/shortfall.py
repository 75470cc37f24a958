"""A refusal in words: what cannot be kept, and which changes, one setting each, would be enough."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Context

from melisma.errors import InfeasibleError

WORDS = {
    "deadline_s": "a deadline_s of {}",
    "stretch": "deadlines {} times as long",
    "budget": "a budget of {}",
    "shards": "{} shards",
}


def refused(  # noqa: PLR0913 - the parts of one sentence
    cause: str,
    *,
    constraint: str,
    miss: float,
    nearest: Mapping[str, float],
    learners: Iterable[int] = (),
    tasks: Iterable[int] = (),
    also: Iterable[str] = (),
) -> InfeasibleError:
    """The error that says the cause, and then what would do: what `also` says, or `nearest`."""
    changes = [WORDS.get(name, name + " of {}").format(_said(nearest[name])) for name in nearest]
    return InfeasibleError(
        f"{cause}; {_any_of([*also, *changes])} would do",
        constraint=constraint,
        miss=miss,
        nearest=nearest,
        learners=learners,
        tasks=tasks,
    )


def rounded_up(value: float) -> str:
    """Five digits that are never below the value, so that what is printed is enough."""
    context = Context(prec=5, rounding=ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def _said(value: float) -> str:
    return str(value) if isinstance(value, int) else rounded_up(value)


def _any_of(ways: list[str]) -> str:
    if not ways:
        return "no change of one setting alone"
    return " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))

"""A refusal in words: what cannot be kept, and which changes, one setting each, would be enough."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context

from melisma.allocation.checks import Ints
from melisma.errors import InfeasibleError

# A message lists at most this many learners.
MAX_LISTED_LEARNERS = 5
CHANGES = {
    "deadline_s": "a deadline_s of {}",
    "stretch": "deadlines {} times as long",
    "budget": "a budget of {}",
    "shards": "{} shards",
    "data": "a part of {} of the data",
}


def infeasible_error(  # noqa: PLR0913 - the parts of one sentence
    cause: str,
    *,
    constraint: str,
    miss: float,
    nearest: Mapping[str, float],
    learners: Iterable[int] = (),
    tasks: Iterable[int] = (),
    also: Iterable[str] = (),
    certain: bool = True,
) -> InfeasibleError:
    """The error that says the cause, and then what would do: what `also` says, or `nearest`.

    Unless it is `certain`, a smaller change may be enough.
    """
    changes = [
        CHANGES.get(name, name + " of {}").format(_format_value(nearest[name])) for name in nearest
    ]
    ways = [*also, *changes]
    enough = f"; {_join_with_or(ways)} would do" if ways else ""
    return InfeasibleError(
        cause + enough + ("" if certain or not ways else ", and less may"),
        constraint=constraint,
        miss=miss,
        nearest=nearest,
        learners=learners,
        tasks=tasks,
    )


def without_single_fix(cause: str) -> str:
    """The cause, where every setting has been tried and none is enough by itself."""
    return f"{cause}; no change of one setting alone would do"


def learner_list(indices: Sequence[int] | Ints) -> str:
    """Return fields for the first few learners, which an `InfeasibleError` replaces by names."""
    listed = ", ".join(f"{{learner[{index}]}}" for index in indices[:MAX_LISTED_LEARNERS])
    return listed + ", ..." * (len(indices) > MAX_LISTED_LEARNERS)


def task_field(index: int) -> str:
    """Return a field for one task, which an `InfeasibleError` replaces by its name."""
    return f"{{task[{index}]}}"


def format_rounded_up(value: float) -> str:
    """Five digits that are never below the value, so that what is printed is enough."""
    context = Context(prec=5, rounding=ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def _format_value(value: float) -> str:
    return str(value) if isinstance(value, int) else format_rounded_up(value)


def _join_with_or(ways: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))

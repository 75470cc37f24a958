"""Build an `InfeasibleError` that names the violated constraint and changes that are enough."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context

from melisma.errors import InfeasibleError
from melisma.fleet.array_types import Ints

# A message lists at most this many learners.
MAX_LISTED_LEARNERS = 5
CHANGES = {
    "deadline_s": "deadline_s >= {}",
    "stretch": "deadlines {} times as long",
    "budget": "budget >= {}",
    "data": "{} of the data",
    # A field that an `InfeasibleError` replaces by the setting of the task.
    "shards": "{{shards[{}]}}",
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
    """Return an error with the cause and the changes of one setting that are enough.

    `nearest` maps settings to values, `also` are other remedies as commands. Unless `certain`, a
    smaller change may be enough.
    """
    changes = [_describe_change(name, value) for name, value in nearest.items()]
    remedies = [*changes, *also]
    advice = ("; use " if changes else "; ") + _join_with_or(remedies) if remedies else ""
    return InfeasibleError(
        cause + advice + ("" if certain or not remedies else " (less may be enough)"),
        constraint=constraint,
        miss=miss,
        nearest=nearest,
        learners=learners,
        tasks=tasks,
    )


def with_nearest_value(error: InfeasibleError, name: str, value: float) -> InfeasibleError:
    """Return the error with another value of a setting as the one that is enough."""
    before, after = error.nearest[name], value
    return error.with_nearest(
        error.nearest | {name: after}, _describe_change(name, before), _describe_change(name, after)
    )


def without_single_fix(cause: str) -> str:
    """Append to the cause that no change of a single setting is enough."""
    return f"{cause}; no change of a single setting is enough"


def learner_list(indices: Sequence[int] | Ints) -> str:
    """Return fields for the first few learners, which an `InfeasibleError` replaces by names."""
    listed = ", ".join(f"{{learner[{index}]}}" for index in indices[:MAX_LISTED_LEARNERS])
    return listed + ", ..." * (len(indices) > MAX_LISTED_LEARNERS)


def task_field(index: int) -> str:
    """Return a field for one task, which an `InfeasibleError` replaces by its name."""
    return f"{{task[{index}]}}"


def format_rounded_up(value: float) -> str:
    """Format with five digits, rounded up, so that the printed value is enough."""
    context = Context(prec=5, rounding=ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def round_up(value: float) -> float:
    """Return the value that `format_rounded_up` prints."""
    return float(format_rounded_up(value))


def _describe_change(name: str, value: float) -> str:
    text = str(value) if isinstance(value, int) else format_rounded_up(value)
    return CHANGES.get(name, name + " = {}").format(text)


def _join_with_or(remedies: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(remedies[:-1]), remedies[-1]]))

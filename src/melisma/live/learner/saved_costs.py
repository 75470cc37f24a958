"""The costs of a learner as bytes, with those in each of its operating states."""

from dataclasses import fields

import msgspec

from melisma.cycle.learner import CostHistory
from melisma.errors import DataError, SettingError
from melisma.fleet.estimates import Estimate
from melisma.live.learner.saved_training import SpoolOwner, add_digest, check_digest

HistoryRows = dict[str, tuple[float, float, float]]
"""The estimates of a `CostHistory`: mean, spread and count of each."""


class SavedStates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs in each state that was measured, the states counted, and the last cycle of them."""

    histories: dict[int, HistoryRows]
    measured_in: int
    counts: tuple[int, ...]
    counted_in: int


class SavedCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs, and where tasks share learners those in each state."""

    owner: SpoolOwner
    costs: HistoryRows
    states: SavedStates | None = None


def encode_history(history: CostHistory) -> HistoryRows:
    """Return the estimates of one learner."""
    estimates = {field.name: getattr(history, field.name) for field in fields(history)}
    return {
        name: (each.mean.item(), each.spread.item(), each.count.item())
        for name, each in estimates.items()
    }


def decode_history(rows: HistoryRows) -> CostHistory:
    """Return the history of these estimates."""
    return CostHistory(**{name: Estimate(*row) for name, row in rows.items()})


def encode_costs(owner: SpoolOwner, costs: CostHistory, states: SavedStates | None) -> bytes:
    """Return costs as bytes."""
    return add_digest(msgspec.json.encode(SavedCosts(owner, encode_history(costs), states)))


def decode_costs(content: bytes) -> SavedCosts:
    """Return the costs of `encode_costs`; raise `DataError` for any other bytes."""
    try:
        saved = msgspec.json.decode(check_digest(content), type=SavedCosts)
        for rows in (saved.costs, *(saved.states.histories.values() if saved.states else ())):
            decode_history(rows)
    except (msgspec.DecodeError, TypeError, SettingError) as error:
        raise DataError(f"it holds no costs: {error}") from error
    return saved

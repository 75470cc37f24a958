"""Updates and models of neighbours: when they are applied, and within which bounds."""

import numpy as np

from melisma.errors import DataError
from melisma.peer import messages, notices
from melisma.peer.guard import CLIP_MEDIANS, norm_of
from melisma.peer.membership import describe_ready
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node_state import NodeState, Outputs
from melisma.peer.stalls import resume


def on_update(node: NodeState, neighbour: Neighbour, update: messages.Update) -> Outputs:
    """Apply an update once, or keep it until training starts."""
    ahead = update.number - neighbour.received if neighbour.started else 0
    if max(ahead, len(neighbour.out_of_order)) > node.max_ahead:
        reason = f"update {update.number} is too far ahead of update {neighbour.received}"
        notice = notices.MessageRejected(sender=update.sender, reason=reason)
        return [notice, node.membership.lose(neighbour)]
    if not neighbour.record_update(update.number):
        return []
    neighbour.progress_at_s = node.now_s
    resumed: Outputs = []
    if resume(neighbour):
        resumed = [describe_ready(neighbour, returned=True)]
    if not node.started:
        node.early_updates.append(update)
        return resumed
    return [_apply(node, neighbour, update), *resumed]


def apply_early_updates(node: NodeState) -> Outputs:
    """Apply the updates that arrived before training started."""
    early, node.early_updates = node.early_updates, []
    early.sort(key=lambda update: update.number)
    return [_apply(node, node.neighbours[update.sender], update) for update in early]


def best_offer(node: NodeState) -> messages.Accepted | None:
    """Return the plausible offer of a model that has most steps; None if there is none."""
    offers = _plausible_offers(node)
    return max(offers, key=lambda offer: (offer.steps, offer.sender), default=None)


def record_own_size(node: NodeState, update: messages.Message) -> None:
    """Record the size of an update of this node, with which those of neighbours are compared."""
    if node.guard.mode == "off" or not node.model.vector.size:
        return
    assert isinstance(update, messages.Update)
    change = node.compression.unpack(update.content, node.model.vector.size)
    norm, scale = node.update_size(node.identity.share, update, change)
    node.guard.record(node.identity.name, norm / scale)


def _apply(
    node: NodeState, neighbour: Neighbour, update: messages.Update
) -> notices.UpdateApplied | notices.MessageRejected:
    sender, incarnation, number = update.sender, update.incarnation, update.number
    try:
        change = node.compression.unpack(update.content, node.model.vector.size)
    except DataError as error:
        return _reject(update, f"update {number}: {error}")
    factor = _guard_factor(node, neighbour, update, change)
    if factor == 0:
        return _reject(update, f"update {number} is left out: far larger than others")
    if factor < 1:
        change = change * np.float32(factor)
    node.apply_update(neighbour, update, change)
    return notices.UpdateApplied(
        sender=sender, incarnation=incarnation, number=number, factor=factor
    )


def _guard_factor(
    node: NodeState, neighbour: Neighbour, update: messages.Update, change: Vector
) -> float:
    """Return the factor by which an update is scaled; 0 if it is left out."""
    if node.guard.mode == "off" or not change.size:
        return 1.0
    norm, scale = node.update_size(neighbour.share, update, change)
    model_norm = norm_of(node.model.vector)
    factor = node.guard.factor(update.sender, norm / scale, model_norm / scale)
    node.guard.record(update.sender, factor * norm / scale)
    return factor


def _reject(update: messages.Update, reason: str) -> notices.MessageRejected:
    """Return the notice of an update that counts as received, but is not applied."""
    return notices.MessageRejected(
        sender=update.sender, reason=reason, incarnation=update.incarnation, number=update.number
    )


def _plausible_offers(node: NodeState) -> list[messages.Accepted]:
    """Return the offered models that are not far from the initial one, compared with others."""
    offers = [offer for offer in node.offers if offer.steps]
    if node.guard.mode == "off" or len(offers) < 3:
        return offers
    models = [np.frombuffer(offer.model, np.float32) for offer in offers]
    distances = np.array([norm_of(model - node.model.vector) for model in models])
    limit = CLIP_MEDIANS * float(np.median(distances))
    return [offer for offer, distance in zip(offers, distances, strict=True) if distance <= limit]

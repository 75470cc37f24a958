"""Nodes become neighbours: greetings, their answers, and from which update on to count.

A node greets with `Hello`, and is answered by `Accepted` or `Rejected`; a node that already trains
offers its model. `Started` says that a neighbour trains, and which updates follow.
"""

from melisma.peer import commands, messages, notices
from melisma.peer.membership import LATER_INCARNATION, describe_ready
from melisma.peer.neighbour import Neighbour
from melisma.peer.node_state import NodeState, Outputs
from melisma.peer.stalls import resume


def on_hello(node: NodeState, hello: messages.Hello) -> Outputs:
    """Accept or reject a node that asks to become a neighbour."""
    neighbour = node.neighbours.get(hello.sender, Neighbour(hello.sender))
    if node.membership.greets_too_often(node.now_s, hello.sender):
        return []
    if hello.incarnation < neighbour.incarnation:
        known = neighbour.incarnation
        return node.membership.reject_hello(hello, LATER_INCARNATION, known)
    if mismatch := node.identity.describe_mismatch(hello.compatibility):
        if hello.sender in node.neighbours:
            neighbour.lost = neighbour.rejected = True
        reason = f"{hello.sender} cannot be a neighbour: {mismatch}"
        rejection = node.membership.reject_hello(hello, mismatch)
        return [*rejection, *_fail_if_all_rejected(node, reason)]
    node.neighbours[hello.sender] = neighbour
    known = hello.incarnation == neighbour.incarnation
    # A neighbour that receives all updates needs no model: its hello is only late.
    offer_model = node.started and not (known and neighbour.receives_all)
    outputs: Outputs = []
    if not known:
        outputs.append(join(node, hello))
    elif neighbour.lost:
        # It may have been accepted long ago, and would ignore a second acceptance.
        outputs += restore(node, neighbour)
    neighbour = node.neighbours[hello.sender]
    neighbour.degree, neighbour.share = hello.degree, hello.share
    outputs.append(_accept(node, neighbour, offer_model))
    return outputs + ([node.say_goodbye(neighbour)] if node.said_goodbye else [])


def on_rejected(node: NodeState, neighbour: Neighbour, rejected: messages.Rejected) -> Outputs:
    """Continue without a neighbour that rejected this node, or as a later incarnation."""
    if refutation := node.membership.refute(rejected):
        return refutation
    neighbour.lost = neighbour.rejected = True
    reason = f"rejected this node: {rejected.reason}"
    notice = notices.MessageRejected(sender=rejected.sender, reason=reason)
    return [notice, *_fail_if_all_rejected(node, f"{rejected.sender} {reason}")]


def on_accepted(node: NodeState, neighbour: Neighbour, accepted: messages.Accepted) -> Outputs:
    """Record the first acceptance of a neighbour, and the model that it offers."""
    neighbour.degree, neighbour.share = accepted.degree, accepted.share
    if neighbour.answered:
        return []
    neighbour.answered = True
    if not accepted.training:
        return []
    if node.started:
        return _count_from_later(node, neighbour, accepted.updates_done, accepted.model)
    node.offers.append(accepted)
    return _count_from(node, neighbour, accepted.updates_done, accepted.model)


def on_started(node: NodeState, neighbour: Neighbour, started: messages.Started) -> Outputs:
    """Count the updates of a neighbour that trains."""
    return _count_from_later(node, neighbour, started.updates_done, started.model)


def join(node: NodeState, message: messages.PeerMessage) -> notices.NeighbourJoined:
    """Start a new record of a neighbour; updates of its former incarnation do not count."""
    node.drop_early_updates(message.sender)
    return node.membership.join(node.now_s, message, node.update_number)


def restore(node: NodeState, neighbour: Neighbour) -> Outputs:
    """Send a neighbour that was lost the messages that it may have missed."""
    neighbour.lost = False
    outputs: Outputs = [describe_ready(neighbour, returned=True)]
    outputs += [node.announce_start(neighbour)] if node.started else []
    outputs += [node.say_goodbye(neighbour)] if node.said_goodbye else []
    return outputs


def _count_from_later(
    node: NodeState, neighbour: Neighbour, updates_done: int, model: bytes
) -> Outputs:
    if neighbour.started and updates_done <= neighbour.received:
        return []
    return _count_from(node, neighbour, updates_done, model)


def _count_from(node: NodeState, neighbour: Neighbour, updates_done: int, model: bytes) -> Outputs:
    """Expect updates after `updates_done`; the announced model contains the earlier ones."""
    overtaken = node.started and neighbour.received > updates_done
    node.drop_early_updates(neighbour.name, updates_done)
    neighbour.start_after(updates_done)
    neighbour.progress_at_s = node.now_s
    resume(neighbour)
    if not overtaken:
        node.on_announced_model(neighbour, model)
    return [describe_ready(neighbour)]


def _accept(node: NodeState, neighbour: Neighbour, offer_model: bool) -> commands.Send:
    return node.membership.send(
        neighbour.name,
        messages.Accepted,
        to_incarnation=neighbour.incarnation,
        degree=node.membership.degree,
        training=offer_model,
        updates_done=node.update_number,
        steps=node.steps,
        model=node.public_model().tobytes() if offer_model else b"",
        share=node.identity.share,
    )


def _fail_if_all_rejected(node: NodeState, reason: str) -> Outputs:
    """Fail before training if no neighbour is left to start with."""
    return node.fail(reason) if node.membership.all_rejected and not node.started else []

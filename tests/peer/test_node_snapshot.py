"""The state of a node as bytes, and nodes that resume from it."""

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.errors import DataError
from melisma.peer import commands, messages, notices
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.node import Node
from melisma.peer.node_snapshot import (
    NodeSnapshot,
    ReceivedMessage,
    decode,
    encode,
    needs_snapshot,
    restore,
    resume,
    take_snapshot,
)
from melisma.peer.node_state import Outputs
from melisma.peer.sent_messages import SentMessages
from melisma.simulation.faults import parse_faults
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver
from melisma.simulation.peers.peer_scenario import PeerScenario, SimulatedNode
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers
from tests.peer.simulated_group import SimulatedGroup, create_peers, run_checked
from tests.peer.tiny_nodes import (
    INITIAL,
    IntegerSteps,
    compute,
    goodbye,
    heartbeat,
    new_node,
    of,
    receivers,
    sent,
    start,
    started,
    to_bytes,
    update,
)

ALGORITHMS: dict[str, Algorithm] = {
    "aet": AetSgd(learning_rate=1.0, decay=0.0, growth=2.0, gain=1.0),
    "auto": AetSgd(learning_rate=1.0, decay=0.0, growth=2.0, max_lag="auto"),
    "local": LocalSgd(learning_rate=1.0, decay=0.0, steps=20, gain=1.0),
    "event": EventTriggeredSgd(learning_rate=1.0, coupling=0.1),
    "gossip": GossipSgd(learning_rate=1.0, steps=5),
}
CRASHES = "crash 1 at 0.05 for 0.02; crash 1 at 0.09 for 0.001; crash 2 at 0.1 for 0.03"


def steps() -> IntegerSteps:
    return IntegerSteps(np.random.default_rng(1))


def restarted(node: Node, inbox: Any = ()) -> tuple[Node, Outputs]:
    """Return a new node that resumes from the state of another one, and its first outputs."""
    content = encode(take_snapshot(node, steps(), 1, SentMessages()))
    again = new_node(neighbours=("b", "c"))
    restore(again, steps(), decode(content, NodeSnapshot, "the state"))
    return again, resume(again, 50.0, inbox)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("compression", ["none", "q8"])
def test_a_restored_node_has_the_same_state(name: str, compression: str) -> None:
    """A snapshot of it has the same bytes, at every moment of a run."""
    group = SimulatedGroup(
        ALGORITHMS[name], "ring", 3, iterations=60, compression=compression, guard="clip"
    )
    checked: list[str] = []

    def watch(name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        sends = SentMessages()
        for send in of(outputs, commands.Send):
            sends.add(send)
        trained = group.steps[name]
        content = encode(take_snapshot(node, trained, 3, sends))
        create = SimulatedGroup(ALGORITHMS[name_of], "ring", 3, **options).create_node
        other, other_steps = create(name, 7)
        again = restore(other, other_steps, decode(content, NodeSnapshot, "the state"))
        assert encode(take_snapshot(other, other_steps, 3, again)) == content
        checked.append(name)

    name_of, options = name, {"iterations": 60, "compression": compression, "guard": "clip"}
    PeerDriver(PeerScenario(group.peers.topology, group.create_node), watch).run()
    assert {*checked} == {"n0", "n1", "n2"}
    assert len(checked) > 50


@pytest.mark.parametrize("name", ["aet", "local"])
@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_a_model_is_the_sum_of_all_updates_each_counted_once(name: str, topology: str) -> None:
    """Integers are exact in float32: an update that is lost or applied twice changes the sum."""
    group = SimulatedGroup(
        ALGORITHMS[name], topology, 4, iterations=300, faults=parse_faults(CRASHES, 4)
    )
    sums: dict[str, dict[int, Any]] = defaultdict(dict)

    def watch(name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        for each in sent(outputs, messages.Update):
            change = each.learning_rate * np.frombuffer(each.content, np.float32)
            known = sums[name].setdefault(each.number, change)
            assert known.tobytes() == change.tobytes()

    faults = parse_faults(CRASHES, 4)
    scenario = PeerScenario(group.peers.topology, group.create_node, group.delays, faults)
    reports = PeerDriver(scenario, watch).run()
    for report in reports:
        assert (report.outcome, report.incarnation) == ("finished", 1)
        near = [report.name, *group.peers.topology.neighbours(report.name)]
        expected = INITIAL - sum(change for each in near for change in sums[each].values())
        assert group.nodes[report.name].model.vector.tolist() == expected.tolist()
    run_checked(scenario)


@pytest.mark.parametrize("forgotten", ["inbox", "sent"])
def test_invariants_notice_what_a_node_forgets(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forgotten == "inbox":
        monkeypatch.setattr(SimulatedNode, "keep", lambda *_: None)
    else:
        monkeypatch.setattr(SentMessages, "without_contents", lambda _: ([], []))
    group = SimulatedGroup(
        ALGORITHMS["local"],
        "ring",
        4,
        iterations=600,
        patience_s=1.0,
        delays=Delays(message_s=(0.01, 0.02)),
    )
    violations: list[str] = []
    for seed in range(10):
        at_s = 0.02 + 0.017 * seed
        faults = parse_faults(f"crash 1 at {at_s} for 0.01; crash 2 at {at_s + 0.05} for 0.01", 4)
        scenario = PeerScenario(group.peers.topology, group.create_node, group.delays, faults)
        try:
            run_checked(scenario)
        except Exception as error:  # noqa: BLE001 - any error is a violation
            violations.append(str(error))
    assert any("forgot updates" in each or "lost updates" in each for each in violations)


def test_only_messages_and_decisions_need_a_snapshot() -> None:
    beat, news = (commands.Send(to="b", message=each) for each in (heartbeat(), started()))
    wake, work = commands.Wake(at_s=1.0), commands.TakeSteps(number=1, steps=1, learning_rate=1.0)
    assert not needs_snapshot([beat, wake, work])
    assert needs_snapshot([beat, news])
    assert needs_snapshot([commands.Finish()])
    # Nobody is told, but it happened by the time, which the inbox does not repeat.
    assert needs_snapshot([notices.NeighbourLost(name="b", alone=True)])
    assert not needs_snapshot([notices.UpdateApplied(sender="b", incarnation=1, number=1)])


def test_a_node_resumes_with_the_messages_that_arrived_after_its_snapshot() -> None:
    node = start(new_node(neighbours=("b", "c")))
    first = compute(node, 1)
    assert sent(first, messages.Update)
    inbox = [ReceivedMessage(each) for each in (update(2, 5), update(1, 3), update(1, 3))]
    again, outputs = restarted(node, inbox)
    assert (again.identity.incarnation, again.identity.restarts) == (1, 1)
    assert again.neighbours["b"].received == 2
    assert again.model.vector.tolist() == (node.model.vector - 8).tolist()
    beats = sent(outputs, messages.Heartbeat)
    assert [(each.incarnation, each.restarts) for each in beats] == [(1, 1), (1, 1)]
    # The time in which it did not run counts against no neighbour.
    assert again.neighbours["c"].progress_at_s == 50.0
    again.on_wake(59.0)
    assert not any(each.stalled for each in again.neighbours.values())


def test_a_neighbour_that_resumes_after_a_goodbye_is_waited_for_again() -> None:
    node = start(new_node(neighbours=("b", "c")))
    node.on_message(1.0, goodbye("b"))
    assert node.neighbours["b"].finished
    back = msgspec.structs.replace(heartbeat("b"), restarts=1)
    node.on_message(2.0, back)
    assert node.membership.neighbours_to_await()[0].name == "b"
    # The former process said goodbye; that message is late.
    node.on_message(3.0, goodbye("b"))
    assert node.membership.neighbours_to_await()[0].name == "b"
    node.on_message(4.0, msgspec.structs.replace(goodbye("b"), restarts=1))
    assert node.neighbours["b"].finished


def test_a_node_that_resumes_after_its_last_step_greets_only_neighbours_that_still_train() -> None:
    """The others may have ended: it would wait for their answers until its patience is over."""
    node = start(new_node(neighbours=("b", "c"), iterations=3))
    node.on_message(1.0, goodbye("b"))
    compute(node, 1)
    assert node.said_goodbye
    again, outputs = restarted(node)
    assert receivers(outputs) == ["c", "c"]
    assert sent(outputs, messages.Heartbeat)
    assert sent(outputs, messages.Goodbye)
    assert not again.finished


def test_every_damage_is_noticed() -> None:
    content = encode(take_snapshot(start(new_node()), steps(), 0, SentMessages()))
    assert decode(content, NodeSnapshot, "x").name == "a"
    for index in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[index] ^= 1
        with pytest.raises(DataError, match="the state is damaged: its checksum is"):
            decode(bytes(damaged), NodeSnapshot, "the state")
    for cut in (0, 3, 4, len(content) - 1):
        with pytest.raises(DataError, match="the state is"):
            decode(content[:cut], NodeSnapshot, "the state")


def test_the_state_of_another_node_algorithm_or_model_is_refused() -> None:
    snapshot = take_snapshot(start(new_node()), steps(), 0, SentMessages())
    for node, message in (
        (new_node(name="b", neighbours=("a",)), "the state of node a, not of b"),
        (new_node(GossipSgd()), "the state of another algorithm"),
    ):
        with pytest.raises(DataError, match=message):
            restore(node, steps(), snapshot)
    longer = msgspec.structs.replace(snapshot, vector=np.zeros(5, np.float32))
    with pytest.raises(DataError, match="the model has 5 numbers in the state of a, but"):
        restore(new_node(), steps(), longer)
    assert to_bytes(new_node().model.vector) == to_bytes(INITIAL)


def test_an_update_that_was_applied_at_the_start_is_not_applied_after_a_restart() -> None:
    """Found by a search: a node alone starts at a time, which no message repeats."""
    faults = (
        "slow 0 at 0.05212 for 0.02305 by 1.548; partition 2 at 0.02292 for 0.03289; vanish 1 at "
        "0.05131 for 0.01506; partition 1 at 0.03389 for 0.02217; crash 2 at 0.01933; crash 1 at "
        "0.03243 for 0.0006591; crash 1 at 0.08682 for 0.008271"
    )
    peers = create_peers(AetSgd(growth=5.0), "line", 3, 200, patience_s=0.02, guard="clip")
    delays = Delays(message_s=(1e-4, 2e-2), seed=1003)
    report = simulate_peers(peers, PeerOptions(work="timing", delays=delays, faults=faults))
    assert [node.outcome for node in report.nodes] == ["finished", "finished", "left"]

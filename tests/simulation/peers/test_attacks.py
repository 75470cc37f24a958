"""Silent nodes and forged messages in virtual time: the invariants hold, and the others finish."""

import pytest

from melisma.errors import SettingError
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.keyring import KeyRing
from melisma.simulation.faults import Fault
from melisma.simulation.invariants.violations import InvariantError
from melisma.simulation.peers.attacks import Attack, parse_faults_and_attacks
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_fault_search import search_peer_faults
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers
from tests.peer.simulated_group import create_peers

ALGORITHMS: list[Algorithm] = [AetSgd(), LocalSgd(steps=20), GossipSgd(), EventTriggeredSgd()]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("at_s", [0.0, 0.02])
def test_the_others_finish_beside_a_silent_node(algorithm: Algorithm, at_s: float) -> None:
    peers = create_peers(algorithm, iterations=200, patience_s=0.05)
    report = simulate_peers(peers, PeerOptions(work="timing", faults=f"silence 1 at {at_s}"))
    assert {node.outcome for node in report.nodes} == {"finished"}
    assert {node.steps for node in report.nodes} == {200}
    given_up = [line for line in report.nodes[0].notices if "n1 answers, but" in line]
    assert given_up or any("n1 is lost" in line for line in report.nodes[0].notices)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("at_s", [0.0, 0.02])
def test_forged_messages_are_reported_and_change_nothing(algorithm: Algorithm, at_s: float) -> None:
    peers = create_peers(algorithm, iterations=200, patience_s=0.05)
    plain = simulate_peers(peers, PeerOptions(work="timing"))
    forged = simulate_peers(peers, PeerOptions(work="timing", faults=f"forge 1 at {at_s}"))
    for node, before in zip(forged.nodes, plain.nodes, strict=True):
        assert node.compute_spans_s == before.compute_spans_s
        assert node.forgeries == (3 if node.name in ("n0", "n2") else 0)
    assert "forged message in the name of n1" in forged.nodes[0].notices[0]


def test_the_invariants_notice_a_node_that_believes_forged_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KeyRing, "bind", lambda *_: "")
    peers = create_peers(LocalSgd(steps=20), iterations=200, patience_s=0.05)
    with pytest.raises(InvariantError, match="believes in incarnation 1000001 of n1"):
        simulate_peers(peers, PeerOptions(work="timing", faults="forge 1 at 0.02"))


def test_attacks_stand_beside_faults_and_are_written_as_they_are_read() -> None:
    text = "crash 1 at 0.5; silence 0 at 1.5; forge 2 at 0.25"
    parsed = parse_faults_and_attacks(text, 3)
    assert parsed[1:] == (Attack("silence", 0, 1.5), Attack("forge", 2, 0.25))
    assert isinstance(parsed[0], Fault)
    assert "; ".join(map(str, parsed)) == text
    with pytest.raises(SettingError, match="unknown learner 3; use 0 to 2"):
        parse_faults_and_attacks("forge 3 at 1", 3)
    with pytest.raises(SettingError, match="invalid number"):
        parse_faults_and_attacks("silence 0 at 1.2.3", 3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_random_faults_and_attacks_violate_nothing(algorithm: Algorithm) -> None:
    peers = create_peers(algorithm, iterations=100, patience_s=0.05)
    failures = [*search_peer_faults(peers, PeerOptions(), range(6))]
    assert failures == [None] * 6


def test_a_silent_neighbour_that_is_given_up_and_then_lost_is_not_waited_for_on_its_return() -> (
    None
):
    """Found by a search: it returns by a heartbeat, which is no progress."""
    faults = (
        "lose instruction 3 to 0; crash 0 at 0.1053 for 0.001898; crash 3 at 0.02008 for 0.000937; "
        "crash 4 at 0.03232 for 0.0042; silence 4 at 0.01538"
    )
    peers = create_peers(
        LocalSgd(steps=20, max_lag=2), "star", 5, 200, patience_s=0.02, guard="clip"
    )
    delays = Delays(message_s=(1e-4, 2e-2), seed=29)
    report = simulate_peers(peers, PeerOptions(work="timing", delays=delays, faults=faults))
    assert report.succeeded
    assert any("n4 answers, but sent no update" in line for line in report.nodes[0].notices)


def test_an_event_triggered_node_that_has_ended_gives_up_a_silent_neighbour() -> None:
    """Found by a search: the time to wait grew as fast as the time that had passed."""
    peers = create_peers(EventTriggeredSgd(), "line", 3, 60, patience_s=0.02, guard="clip")
    delays = Delays(message_s=(1e-4, 2e-2), seed=1012)
    faults = (
        "duplicate report 6 from 2 by 0.001599; slow 2 at 0.01483 for 0.003275 by 2.342; slow 2 at "
        "0.00997 for 0.003088 by 3.584; vanish 1 at 0.02239 for 0.0009783; partition 2 at 0.02603 "
        "for 0.001609; duplicate report 2 from 2 by 0.001263; clock 1 by 1.222; delay instruction "
        "5 to 2 by 0.002934; crash 1 at 0.01091 for 0.006254; clock 0 by 0.9569; slow 2 at 0.02687 "
        "for 0.007419 by 2.919; silence 1 at 0.02105"
    )
    report = simulate_peers(peers, PeerOptions(work="timing", delays=delays, faults=faults))
    assert {node.outcome for node in report.nodes} == {"finished"}

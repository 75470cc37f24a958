"""Reports on nodes."""

import msgspec

from melisma.runs.peer_report import NodeReport


def test_the_report_of_a_node_that_never_started_can_be_decoded() -> None:
    report = NodeReport(name="a", outcome="failed", reason="refused")
    assert msgspec.json.decode(msgspec.json.encode(report), type=NodeReport) == report

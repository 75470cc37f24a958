"""Reports on nodes."""

import msgspec

from melisma.peer import notices
from melisma.runs.peer_report import NodeReport, describe_notice


def test_the_report_of_a_node_that_never_started_can_be_decoded() -> None:
    report = NodeReport(name="a", outcome="failed", reason="refused")
    assert msgspec.json.decode(msgspec.json.encode(report), type=NodeReport) == report


def test_text_of_other_nodes_is_escaped_and_cut_in_notices() -> None:
    reason = "\x1b[2J\n\u202e" + 10_000 * "x"
    line = describe_notice(notices.MessageRejected(sender="b", reason=reason))
    assert line.startswith(r"b: \x1b[2J\n\u202exxx")
    assert line.endswith("... (9509 more characters)")

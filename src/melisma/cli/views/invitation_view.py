"""The invitation of an orchestrator: the command for devices, as text and as a QR code."""

import io

import segno

from melisma.live.invitation import Invitation


def invitation_lines(invitation: Invitation) -> tuple[str, list[str]]:
    """Return task and command for devices, and lines about addresses, identity and start.

    The command has a line of its own, so that it is easy to copy.
    """
    notes = filter(None, (invitation.code_note, invitation.data_note))
    details = [*notes, f"addresses: {', '.join(invitation.addresses)}"]
    if invitation.left_out:
        details.append(f"left out, as they do not fit: {', '.join(invitation.left_out)}")
    details += [
        f"fingerprint: {invitation.fingerprint[:39]}",
        invitation.beginning,
    ]
    return f"{invitation.summary}\non each device:\n{invitation.command}", details


def qr_code(text: str, encoding: str) -> str:
    """Return a QR code of half blocks; empty if the terminal cannot show them."""
    output = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(output, border=2, compact=True)
    code = output.getvalue().rstrip("\n")
    try:
        code.encode(encoding)
    except UnicodeEncodeError:
        return ""
    return code

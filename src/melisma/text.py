"""Text from other machines, made safe to print, and numbers as people read them.

Escape sequences of a terminal could hide or change what it shows, and bidirectional overrides make
a line read otherwise than it is written. Such text is escaped before it reaches a terminal, a log
or a report.
"""

MAX_CHARS = 500


def visible(text: str, max_chars: int = MAX_CHARS) -> str:
    r"""Return text on one line, with escapes such as `\x1b` for characters that do not print.

    A text longer than `max_chars` is cut; the rest is counted.
    """
    return visible_part(text[:max_chars]) + _describe_rest(len(text) - max_chars)


def visible_lines(text: str, max_chars: int = 100 * MAX_CHARS) -> str:
    """Return text of several lines, each as by `visible`; tabs stay."""
    cut = text[:max_chars]
    lines = ("\t".join(map(visible_part, line.split("\t"))) for line in cut.split("\n"))
    return "\n".join(lines) + _describe_rest(len(text) - max_chars)


def visible_part(text: str) -> str:
    """Return text of any length on one line, with escapes for characters that do not print."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def format_speed(samples_per_s: float) -> str:
    """Return a speed such as ``5,120 samples/s``; a slow one with two digits."""
    number = f"{samples_per_s:,.0f}" if samples_per_s >= 10 else f"{samples_per_s:.2g}"
    return f"{number} samples/s"


def _describe_rest(chars: int) -> str:
    return f"... ({chars} more characters)" if chars > 0 else ""

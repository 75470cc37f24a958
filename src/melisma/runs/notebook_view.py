"""A view of a run in a notebook, updated after each cycle; only used inside a Jupyter kernel.

IPython is not imported: in a kernel it is loaded already.
"""

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melisma.runs.report import Report

# More updates than these make a notebook slow.
MIN_PAUSE_S = 0.25


class NotebookView:
    """One output of a cell that shows the latest cycles."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle, self._shown_at = display, None, -MIN_PAUSE_S

    def show(self, report: "Report") -> None:
        """Show the run so far, unless it was shown just before and goes on."""
        from melisma.runs.report_tables import progress_html

        now = time.monotonic()
        if report.outcome == "running" and now - self._shown_at < MIN_PAUSE_S:
            return
        self._shown_at = now
        content = {"text/html": progress_html(report), "text/plain": report.deadline_summary}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def find_notebook_view() -> NotebookView | None:
    """Return a new view in a notebook, None anywhere else."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return NotebookView(sys.modules["IPython.display"].display)

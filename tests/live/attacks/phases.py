"""Phases of a learner process in which a test disturbs it: it says so in its log, and waits there.

Run in the process before its main function: ``pause_in("train", 5.0)``.
"""

import sys
import time
from typing import Any

from melisma.live.learner.agent import Agent
from melisma.live.learner.fetcher import Fetcher

PHASES: dict[str, tuple[type, str]] = {
    "benchmark": (Agent, "_measure"),
    "fetch model": (Agent, "_train"),
    "fetch shards": (Fetcher, "begin"),
    "load": (Fetcher, "_read"),
    "train": (Agent, "_train_until_deadline"),
    "upload": (Agent, "_upload"),
    "wait": (Agent, "_upload"),
    "evaluate": (Agent, "_evaluate_model"),
}
AFTERWARDS = ("wait",)
"""Phases that begin when the method has returned."""


def pause_in(phase: str, seconds: float) -> None:
    """Wait at the start of a phase, the first time that it begins."""
    owner, name = PHASES[phase]
    original = getattr(owner, name)
    paused = False

    def pause() -> None:
        nonlocal paused
        if not paused:
            paused = True
            sys.stderr.write(f"begins to {phase}\n")
            sys.stderr.flush()
            time.sleep(seconds)

    def call_with_pause(*args: Any, **kwargs: Any) -> Any:
        if phase not in AFTERWARDS:
            pause()
        result = original(*args, **kwargs)
        if phase in AFTERWARDS:
            pause()
        return result

    setattr(owner, name, call_with_pause)

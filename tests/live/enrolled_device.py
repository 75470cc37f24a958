"""A device that joins an orchestrator by its join string, with a learner process of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma import axon
from melisma.live.join_string import JoinString
from melisma.live.learner.device_identity import DeviceState
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.reach import reach
from tests.live.child_process import start_process

ROOT = str(Path(__file__).parents[2])


def join(folder: Path, text: str) -> LearnerSettings:
    """Do what a device does with a join string; return the settings of its learner process."""
    invitation, state = JoinString.parse(text), DeviceState(folder)
    state.create_identity()
    reached = reach(invitation.hosts, invitation.port, invitation.fingerprint_prefix)
    with axon.connect(
        reached.address, token=invitation.token, certificate=state.identity
    ) as orchestrator:
        name = orchestrator.enroll(folder.name)
    state.remember(reached.fingerprint, [reached.address], name)
    return LearnerSettings(
        name=name,
        orchestrator=(reached.address,),
        certificate=str(state.identity),
        cache=str(folder / "cache"),
        module_path=(ROOT,),
        allowed_modules=("tests.live.tiny_task",),
    )


def start_learner(settings: LearnerSettings) -> "subprocess.Popen[bytes]":
    """Start the learner process of a device; it ends when its standard input is closed."""
    return start_process("melisma.live.learner.learner_process", settings)


@contextmanager
def devices(folder: Path, text: str, *names: str) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Let devices join and train inside a ``with``."""
    processes = []
    try:
        for name in names:
            home = folder / name
            home.mkdir(exist_ok=True)
            processes.append(start_learner(join(home, text)))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()

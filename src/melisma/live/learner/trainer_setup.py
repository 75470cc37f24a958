"""The trainers of a learner: on its compute device, with the code that its owner allows."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from melisma.cycle.learner import benchmark_s
from melisma.errors import SettingError
from melisma.learning.trainer import Trainer
from melisma.live.learner.code_limits import (
    default_memory_bytes,
    limit_memory,
    time_limit,
    watch_trainer,
)
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.trusted_code import Files, permit_model
from melisma.live.protocol import RegisterResponse
from melisma.user_code import is_import_path

BUILD_S: Final = 600.0
"""Time to import and build a model; PyTorch alone takes half a minute on small devices."""


def require_64_bit(largest_int: int = sys.maxsize) -> None:
    """Raise `SettingError` on a 32-bit system, for which there is no PyTorch."""
    if largest_int < 2**32:
        raise SettingError(
            "this Python is a 32-bit program; install a 64-bit operating system on this device"
        )


def prepare_trainers(
    settings: LearnerSettings, registered: RegisterResponse, files: Files
) -> Callable[[], Trainer]:
    """Return the function that builds a trainer of the task, after the owner's permission.

    Raise `SettingError` if the owner does not allow the model. Code of the orchestrator is limited
    in memory and time.
    """
    task, folder = registered.task, Path(f"{settings.cache}-code")
    trusted = settings.trust_code and is_import_path(task.model)
    if settings.memory_bytes is not None or trusted:
        limit_memory(settings.memory_bytes or default_memory_bytes())

    def build() -> Trainer:
        # Imported here: the framework is loaded only when the task is known.
        from melisma.learning.trainer_factory import trainer_for

        return trainer_for(task, settings.compute_device)

    def build_watched() -> Trainer:
        with time_limit(BUILD_S):
            return watch_trainer(build(), max(task.total_s or task.deadline_s, benchmark_s(task)))

    if not trusted:
        permit_model(task.model, settings.allowed_modules, registered.bundle, None)
        return build
    with time_limit(BUILD_S):
        permit_model(task.model, settings.allowed_modules, registered.bundle, (files, folder))
    return build_watched

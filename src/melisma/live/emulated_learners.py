"""The devices that this machine emulates: the settings of their processes, and their data."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import partition_shards
from melisma.learning.data.shards import encode_shard
from melisma.live.learner.learner_settings import (
    DEFAULT_CACHE_BYTES,
    EmulatedDevice,
    LearnerSettings,
    OperatingState,
)
from melisma.live.learner.trusted_code import defining_modules
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.private_files import make_private_folder, write_private
from melisma.runs.folder import DEVICES_FOLDER

if TYPE_CHECKING:
    from melisma.live.preparation import PreparedRun


def write_local_data(folder: Path, task: Task, data: Split, local_samples: tuple[int, ...]) -> None:
    """Write each device's shards for federated learning below a run folder."""
    devices = partition_shards(task, data.labels, np.array(local_samples, np.int64))
    for number, shards in enumerate(devices):
        own = _local_data_folder(folder, number)
        make_private_folder(own)
        for shard, part in enumerate(shards):
            content = encode_shard(Split(data.samples[part], data.labels[part]))
            write_private(own / f"{shard:06}", content)


def _local_data_folder(folder: Path, number: int) -> Path:
    return folder / DEVICES_FOLDER / f"{number}-data"


def emulated_learners(prepared: "PreparedRun") -> tuple[LearnerSettings, ...]:
    """Return the settings of all learners, before `complete_settings`."""
    fleet = prepared.fleet
    # A learner of this machine may be assigned all shards.
    data_bytes = prepared.train.samples.nbytes + prepared.train.labels.nbytes
    # Task and fleet are files of the same owner.
    own = {"model": (prepared.task.model,), "stress": fleet.stressors}
    allowed = tuple(m for key in own for name in own[key] for m in defining_modules(name, key))
    return tuple(
        LearnerSettings(
            name=name,
            orchestrator=(),
            cache="",
            cache_bytes=max(DEFAULT_CACHE_BYTES, 2 * data_bytes),
            discloses=fleet.discloses[number],
            device=_device_settings(prepared, number),
            # Emulated devices are paced by processor time.
            compute_device="cpu",
            module_path=prepared.module_path,
            allowed_modules=allowed,
        )
        for number, name in enumerate(fleet.names)
    )


def complete_settings(
    learners: Sequence[LearnerSettings],
    folder: Path,
    mode: str,
    address: str,
    tokens: LearnerTokens,
) -> list[LearnerSettings]:
    """Return the settings with the files of each learner, its token, and the orchestrator.

    The run folder may be at another place than when the run began.
    """
    devices, federated = folder / DEVICES_FOLDER, mode == "federated"
    return [
        msgspec.structs.replace(
            item,
            orchestrator=(address,),
            token=tokens.token(item.name),
            cache=str(devices / f"{number}-cache"),
            spool=str(devices / f"{number}-spool"),
            local_data=str(_local_data_folder(folder, number)) if federated else None,
        )
        for number, item in enumerate(learners)
    ]


def _device_settings(prepared: "PreparedRun", number: int) -> EmulatedDevice:
    fleet = prepared.fleet
    # Each device gets its share of the orchestrator's link while all of them use it.
    down_bps, up_bps = fleet.shared_rates_bps
    sample_s = float(fleet.specified_sample_s(prepared.task)[number])
    columns = (fleet.state_probability, fleet.state_compute, fleet.state_bandwidth)
    rows = (column[number].tolist() for column in columns)
    names = (*fleet.stressors, "")  # -1: none
    stress = (names[index] for index in fleet.state_stress[number].tolist())
    noise, trace_id = fleet.noise, int(fleet.trace_ids[number])
    return EmulatedDevice(
        core_share=prepared.core_shares[number],
        downlink_bps=float(down_bps[number]),
        uplink_bps=float(up_bps[number]),
        latency_s=float(fleet.latency_s[number]),
        states=tuple(OperatingState(*row) for row in zip(*rows, stress, strict=True)),
        seed=fleet.seed,
        sample_s=None if isnan(sample_s) else sample_s,
        noise=(
            float(noise.compute[number]),
            float(noise.bandwidth[number]),
            float(noise.correlation_s[number]),
        ),
        trace=fleet.traces[trace_id].rows if trace_id >= 0 else (),
        state_probabilities=fleet.state_probabilities,
    )

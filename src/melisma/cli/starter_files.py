"""The files that `melisma init` writes, each key with a comment that explains it."""

import json
import re
from dataclasses import dataclass

from melisma.cli.durations import parse_duration
from melisma.errors import SettingError, suggest
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.run_time import RunTime

DEFAULT_DEVICES = "raspberry-pi-3a, raspberry-pi-4, phone, jetson-nano"
DEVICE = re.compile(r"(?:(\d+) *x? +)?([\w-]+)")


@dataclass(frozen=True)
class Subject:
    """A model and data to train, with a shard size and a total time that suit them."""

    name: str
    model: str
    data: str
    shard_samples: int = 100
    total_s: float = 600.0


# By data set; each model fits its data.
SUBJECTS = {
    "mnist": Subject("digits", "twonn", "mnist", 500, 60.0),
    "fashion-mnist": Subject("clothes", "fashionnet", "fashion-mnist"),
    "kmnist": Subject("characters", "cnn", "kmnist"),
    "cifar-10": Subject("photographs", "alexnet", "cifar-10"),
}


def own_subject(model: str, data: str) -> Subject:
    """Return the subject for a model and data that are given by name."""
    module = (model if ":" in model else data).partition(":")[0]
    return Subject(module.rpartition(".")[2], model, data, total_s=60.0)


def parse_time(text: str) -> RunTime:
    """Return the time of a run from `90`, `10 min`, `2 h`, `23:00` or a date and a time."""
    if (total_s := parse_duration(text)) is not None:
        return RunTime(total_s=total_s)
    if ":" in text:
        return RunTime(finish_by=text.strip())
    raise SettingError(f"time {text!r}; expected such as 10 min, 2 h or 23:00")


def parse_devices(text: str) -> dict[str, int]:
    """Return the number of devices by profile, from text such as `2 raspberry-pi-4, phone`."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = DEVICE.fullmatch(part.strip())
        if match is None:
            raise SettingError(f"devices: {part.strip()!r}; expected such as 2 raspberry-pi-4")
        number, profile = int(match[1] or 1), match[2]
        if profile not in PROFILES:
            raise SettingError(f"devices: unknown {profile!r}; {suggest(profile, PROFILES)}")
        if not number:
            raise SettingError(f"devices: 0 {profile}; expected at least 1")
        counts[profile] = counts.get(profile, 0) + number
    return counts


def render_task(subject: Subject, time: RunTime) -> str:
    """Return the text of TASK.toml."""
    return TASK_TEXT.format(
        name=json.dumps(subject.name),
        model=json.dumps(subject.model),
        data=json.dumps(subject.data),
        shard_samples=subject.shard_samples,
        time=_time_lines(time),
    )


def _time_lines(time: RunTime) -> str:
    if time.deadline_s is not None:
        return DEADLINE_TEXT.format(deadline_s=float(time.deadline_s))
    given = (
        f"finish_by = {json.dumps(time.finish_by)}"
        if time.finish_by is not None
        else f"total_s = {time.total_s or 0.0:.12g}"
    )
    return TOTAL_TEXT.format(given=given)


def render_fleet(counts: dict[str, int]) -> str:
    """Return the text of FLEET.toml for these numbers of devices by profile."""
    tables = [
        (LEARNER_TEXT if count == 1 else GROUP_TEXT).format(
            profile=profile, count=count, about=PROFILES[profile].description
        )
        for profile, count in counts.items()
    ]
    return "\n".join([FLEET_TEXT, *tables, FLEET_END_TEXT])


TASK_TEXT = """\
# What to train, and by when. Keys behind a # are optional and show their default.
[task]
# A name for reports and folders.
name = {name}

# The model: a built-in name (twonn, cnn, ...) or your PyTorch class as "module:Class".
model = {model}

# The data: a name from `melisma data list`, or your function as "module:function"; it returns
# (samples, labels), (test_samples, test_labels) as NumPy arrays.
data = {data}

{time}
# How the work is divided among devices. With "dab" each device says how many shards it can train in
# time; `melisma plan TASK.toml --fleet FLEET.toml --all` compares the others.
scheme = "dab"

# How often a device trains on its shards before it sends its update (local epochs).
passes = 1

# Samples in a shard, the smallest portion of data that a device is given.
shard_samples = {shard_samples}

# Samples in one step of the optimizer.
batch = 32

# The optimizer of each device: "sgd" or "adam", and its learning rate.
optimizer = {{ name = "sgd", lr = 0.1 }}

# The loss to minimise; "mse" for regression.
# loss = "cross_entropy"

# "federated": each device trains on data of its own, which does not leave it.
# mode = "parallelized"

# Stop as soon as the model is good enough.
# stop = {{ accuracy = 0.97 }}

# The seed of the initial model and of every random choice.
seed = 1
"""

TOTAL_TEXT = """\
# When the whole run ends: total_s in seconds from its start, or finish_by = "23:00". The number and
# length of its cycles follow from that; deadline_s and cycles set them instead.
{given}
"""

DEADLINE_TEXT = """\
# Seconds of one cycle: devices train, then their updates are averaged. Instead of deadline_s and
# cycles, total_s sets the seconds of the whole run, and finish_by when it ends.
deadline_s = {deadline_s:.12g}

# The number of cycles.
cycles = 10
"""

FLEET_TEXT = """\
# The devices. `melisma run` emulates them on this machine, `melisma simulate` in virtual time;
# `melisma orchestrate` waits for real ones instead and does not need this file.
# A profile is the assumed speed and link of a kind of device; to override it, add keys such as
# compute = 0.5 (of one core of this machine) or bandwidth_bps = 20e6.
"""

LEARNER_TEXT = """\
# {about}
[[fleet.learner]]
name = "{profile}"
profile = "{profile}"
"""

GROUP_TEXT = """\
# {about}
[[fleet.group]]
profile = "{profile}"
# The number of such devices.
count = {count}
"""

FLEET_END_TEXT = """\
# The seed of everything that is drawn at random about the devices.
[fleet]
seed = 1
"""

MODULE_TEXT = '''\
"""A model and its data; replace both by your own."""

import numpy as np
from torch import nn


def {load}():
    """Return (samples, labels) for training and for testing: here points in and around a circle."""
    points = np.random.default_rng(0).uniform(-1, 1, (3000, 2)).astype(np.float32)
    labels = (np.square(points).sum(axis=1) < 0.5).astype(np.int64)
    return (points[500:], labels[500:]), (points[:500], labels[:500])


class {net}(nn.Module):
    """A network with one score for each of two classes."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, samples):
        return self.layers(samples)
'''

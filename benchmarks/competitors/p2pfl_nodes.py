"""p2pfl: one node in its own process, with gossip and FedAvg over TCP, and training by Lightning.

`python -m benchmarks.competitors.p2pfl_nodes JOB.json INDEX` trains and writes the accuracy after
each round and the bytes that the node had sent by then. Bytes are those of messages passed to
sockets, without encryption and metrics (`simulation`, its default).

For each round p2pfl connects all training nodes with each other, and closes the new connections
afterwards. Here all nodes are connected from the start: in a ring, a late node would send models
of the previous round over new connections, and they would count, because they carry no round.

p2pfl 0.1.5 imports names that Lightning 2 has moved; `alias_module` restores them. A node fails if
two neighbours send the first model at the same time, so models are accepted one at a time. Nothing
else is changed, except for the counters and `Settings`.
"""

import json
import os
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from socket import create_connection
from threading import Event, Lock, Thread
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # A torchvision built for CUDA lacks operators with a CPU build of PyTorch; they are not used.
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import pytorch_lightning as lightning
from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
from pytorch_lightning.utilities.rank_zero import rank_zero_only


def alias_module(name: str, **members: Any) -> None:
    """Register a module under its former name."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


alias_module(
    "pytorch_lightning.loggers.base",
    LightningLoggerBase=Logger,
    rank_zero_experiment=rank_zero_experiment,
)
alias_module("pytorch_lightning.utilities.distributed", rank_zero_only=rank_zero_only)

from p2pfl.communication_protocol import CommunicationProtocol  # noqa: E402
from p2pfl.learning.pytorch import lightninglearner  # noqa: E402
from p2pfl.node import Node  # noqa: E402
from p2pfl.node_connection import NodeConnection  # noqa: E402
from p2pfl.settings import Settings  # noqa: E402

HOST, POLL_S = "127.0.0.1", 0.05
TEST_BATCH = 500
"""Test samples per batch."""


class Job(NamedTuple):
    """The training to do, its nodes, and the files for the results."""

    data: str
    out: str
    ports: list[int]
    rounds: int
    batch: int
    lr: float
    settings: dict[str, float]

    @classmethod
    def read(cls, path: str) -> "Job":
        return cls(**json.loads(Path(path).read_text()))


class SentCounter:
    """Count the text messages, models and bytes that this node sends."""

    def __init__(self) -> None:
        self.bytes = self.messages = self.models = 0

    def count(self) -> None:
        """Start counting."""
        send, params = NodeConnection.send, CommunicationProtocol.build_params_msg

        def counted(connection: NodeConnection, data: bytes) -> bool:
            sent = bool(send(connection, data))
            if sent:
                self.bytes += len(data)
                self.messages += not data.startswith(b"PARAMS")
            return sent

        def built(data: bytes) -> list[bytes]:
            self.models += 1
            self.messages += 1
            return list(params(data))

        NodeConnection.send, CommunicationProtocol.build_params_msg = counted, built


class Network(lightning.LightningModule):
    """LeNet, trained by plain SGD."""

    def __init__(self, start: list[Tensor], lr: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 20, 5, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU()),
            *(nn.Linear(128, 84), nn.ReLU(), nn.Linear(84, 10)),
        )
        self.load_state_dict(dict(zip(self.state_dict(), start, strict=True)))
        self.lr, self.steps = lr, 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr)

    def training_step(self, batch: list[Tensor], *_: int) -> Tensor:
        self.steps += 1
        return functional.cross_entropy(self.layers(batch[0]), batch[1])

    def test_step(self, batch: list[Tensor], *_: int) -> None:
        out = self.layers(batch[0])
        self.log("test_loss", functional.cross_entropy(out, batch[1]))
        self.log("test_metric", (out.argmax(dim=1) == batch[1]).float().mean())


class Data(lightning.LightningDataModule):
    """The training samples of one node, and the test samples of all nodes."""

    def __init__(self, path: str, index: int, batch: int) -> None:
        super().__init__()
        with np.load(path) as file:
            own = file[f"part-{index}"]
            self.train = _tensors(file["train-x"][own], file["train-y"][own])
            self.test = _tensors(file["test-x"], file["test-y"])
        self.batch = batch

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, self.batch, shuffle=True)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, TEST_BATCH)


class Learner(lightninglearner.LightningLearner):  # type: ignore[misc]
    """p2pfl's learner, which also records scores and times."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent, self.scores = SentCounter(), list[dict[str, float]]()

    def evaluate(self) -> tuple[float, float] | None:
        """Evaluate; called before each round and after the last."""
        score: tuple[float, float] | None = super().evaluate()
        if score is None:
            raise RuntimeError("evaluation returned no score")
        self.scores.append(
            {
                "at_s": time.time(),
                "steps": self.model.steps,
                "sent_bytes": self.sent.bytes,
                "messages": self.sent.messages,
                "models": self.sent.models,
                "accuracy": score[1],
                "loss": score[0],
            }
        )
        return score


class SerialNode(Node):  # type: ignore[misc]
    """p2pfl's node, which accepts one model at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.model_lock = Lock()
        super().__init__(*args, **kwargs)

    def add_model(self, m: bytes) -> None:
        with self.model_lock:
            super().add_model(m)


def _tensors(x: Any, y: Any) -> TensorDataset:
    samples = torch.from_numpy(x).float().unsqueeze(1) / 255
    return TensorDataset(samples, torch.from_numpy(y.astype(np.int64)))


def _start(path: str) -> list[Tensor]:
    with np.load(path) as file:
        names = takewhile(file.files.__contains__, (f"start-{n}" for n in count()))
        return [torch.from_numpy(file[name]) for name in names]


def _connect(node: Node, port: int) -> None:
    """Connect to a neighbour once it listens."""
    while True:
        with suppress(OSError), create_connection((HOST, port), 1.0):
            break
        time.sleep(POLL_S)
    if node.connect_to(HOST, port) is None:
        raise RuntimeError(f"no connection to port {port}")


def _exit_with_parent() -> None:
    """Exit when standard input closes, that is, when the parent process ends."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    Thread(target=_exit_with_parent, daemon=True).start()
    job, index = Job.read(sys.argv[1]), int(sys.argv[2])
    for name, value in job.settings.items():
        setattr(Settings, name, value)
    # Nothing shows progress bars here.
    lightninglearner.Trainer = partial(lightning.Trainer, enable_progress_bar=False)
    torch.set_num_threads(1)
    torch.manual_seed(index)
    model, data = Network(_start(job.data), job.lr), Data(job.data, index, job.batch)
    node = SerialNode(model, data, HOST, job.ports[index], learner=Learner)
    node.learner.sent.count()
    node.start()
    for port in job.ports[index + 1 :]:
        _connect(node, port)
    others = len(job.ports) - 1
    while len(node.get_neighbors()) < others or len(node.get_network_nodes()) <= others:
        time.sleep(POLL_S)
    Path(f"{job.out}-{index}.ready").touch()
    if index == 0:
        while not all(Path(f"{job.out}-{n}.ready").exists() for n in range(len(job.ports))):
            time.sleep(POLL_S)
        node.set_start_learning(job.rounds, 1)
    # A score before each round, and one after the last.
    while len(node.learner.scores) <= job.rounds:
        if not node.is_alive():
            # The other threads of p2pfl may never end.
            os._exit(1)
        time.sleep(POLL_S)
    part = Path(f"{job.out}-{index}.part")
    part.write_text(json.dumps(node.learner.scores))
    part.rename(f"{job.out}-{index}.json")
    # Other nodes may still need this one.
    Event().wait()


if __name__ == "__main__":
    main()

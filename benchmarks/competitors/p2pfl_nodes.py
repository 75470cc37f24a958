"""p2pfl: one node in a process of its own, its gossip and FedAvg over TCP, training by Lightning.

`python -m benchmarks.competitors.p2pfl_nodes ORDER.json PLACE` trains and writes the accuracy
after each round and the bytes that the node had sent by then. Bytes are those of its messages as
it hands them to sockets, neither encrypted nor with metrics (`simulation`, its default).

For each round p2pfl connects all that train with each other, and takes what was not there before
down again. All are connected from the beginning here: of a ring, a node that is late sends the
models of the round before over connections made anew, and they count, for they tell no round.

p2pfl 0.1.5 imports names that Lightning 2 has moved; they are put where it looks for them. A node
to which two neighbours bring the first model at once would fall over, so models are taken in one at
a time. Nothing else of it is changed, but for what is counted and `Settings`.
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
    # Built for graphics cards, it lacks operators beside a PyTorch without; nobody calls them here.
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import pytorch_lightning as lightning
from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
from pytorch_lightning.utilities.rank_zero import rank_zero_only


def moved(name: str, **members: Any) -> None:
    """A module that Lightning had once."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


moved(
    "pytorch_lightning.loggers.base",
    LightningLoggerBase=Logger,
    rank_zero_experiment=rank_zero_experiment,
)
moved("pytorch_lightning.utilities.distributed", rank_zero_only=rank_zero_only)

from p2pfl.communication_protocol import CommunicationProtocol  # noqa: E402
from p2pfl.learning.pytorch import lightninglearner  # noqa: E402
from p2pfl.node import Node  # noqa: E402
from p2pfl.node_connection import NodeConnection  # noqa: E402
from p2pfl.settings import Settings  # noqa: E402

HOST, LOOK_S = "127.0.0.1", 0.05
SCORED = 500
"""Test samples at once."""


class Order(NamedTuple):
    """What is to be trained, by which nodes, and where the figures go."""

    data: str
    out: str
    ports: list[int]
    rounds: int
    batch: int
    lr: float
    settings: dict[str, float]

    @classmethod
    def read(cls, path: str) -> "Order":
        return cls(**json.loads(Path(path).read_text()))


class Sent:
    """What this node has sent: text messages and models, and the bytes of both."""

    def __init__(self) -> None:
        self.bytes = self.messages = self.models = 0

    def count(self) -> None:
        """Count from now on."""
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
    """The samples of one node, and those that all are scored on."""

    def __init__(self, path: str, place: int, batch: int) -> None:
        super().__init__()
        with np.load(path) as file:
            own = file[f"part-{place}"]
            self.train = _tensors(file["train-x"][own], file["train-y"][own])
            self.test = _tensors(file["test-x"], file["test-y"])
        self.batch = batch

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, self.batch, shuffle=True)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, SCORED)


class Learner(lightninglearner.LightningLearner):  # type: ignore[misc]
    """p2pfl's own, which notes what came out and when."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent, self.scores = Sent(), list[dict[str, float]]()

    def evaluate(self) -> tuple[float, float] | None:
        """Before each round, and after the last."""
        found: tuple[float, float] | None = super().evaluate()
        if found is None:
            raise RuntimeError("it could not be scored")
        self.scores.append(
            {
                "at_s": time.time(),
                "steps": self.model.steps,
                "sent_bytes": self.sent.bytes,
                "messages": self.sent.messages,
                "models": self.sent.models,
                "accuracy": found[1],
                "loss": found[0],
            }
        )
        return found


class Peer(Node):  # type: ignore[misc]
    """p2pfl's own, which takes in one model at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.door = Lock()
        super().__init__(*args, **kwargs)

    def add_model(self, m: bytes) -> None:
        with self.door:
            super().add_model(m)


def _tensors(x: Any, y: Any) -> TensorDataset:
    samples = torch.from_numpy(x).float().unsqueeze(1) / 255
    return TensorDataset(samples, torch.from_numpy(y.astype(np.int64)))


def _start(path: str) -> list[Tensor]:
    with np.load(path) as file:
        names = takewhile(file.files.__contains__, (f"start-{n}" for n in count()))
        return [torch.from_numpy(file[name]) for name in names]


def _reach(node: Node, port: int) -> None:
    """Connect to a neighbour as soon as it listens."""
    while True:
        with suppress(OSError), create_connection((HOST, port), 1.0):
            break
        time.sleep(LOOK_S)
    if node.connect_to(HOST, port) is None:
        raise RuntimeError(f"it could not connect to {port}")


def _watch() -> None:
    """Whoever started it holds standard input open; when it closes, it is over."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    Thread(target=_watch, daemon=True).start()
    order, place = Order.read(sys.argv[1]), int(sys.argv[2])
    for name, value in order.settings.items():
        setattr(Settings, name, value)
    # Bars of progress on five terminals are nobody's.
    lightninglearner.Trainer = partial(lightning.Trainer, enable_progress_bar=False)
    torch.set_num_threads(1)
    torch.manual_seed(place)
    model, data = Network(_start(order.data), order.lr), Data(order.data, place, order.batch)
    node = Peer(model, data, HOST, order.ports[place], learner=Learner)
    node.learner.sent.count()
    node.start()
    for port in order.ports[place + 1 :]:
        _reach(node, port)
    others = len(order.ports) - 1
    while len(node.get_neighbors()) < others or len(node.get_network_nodes()) <= others:
        time.sleep(LOOK_S)
    Path(f"{order.out}-{place}.ready").touch()
    if place == 0:
        while not all(Path(f"{order.out}-{n}.ready").exists() for n in range(len(order.ports))):
            time.sleep(LOOK_S)
        node.set_start_learning(order.rounds, 1)
    # A score before each round, and one after the last.
    while len(node.learner.scores) <= order.rounds:
        if not node.is_alive():
            # Its other threads might never end.
            os._exit(1)
        time.sleep(LOOK_S)
    part = Path(f"{order.out}-{place}.part")
    part.write_text(json.dumps(node.learner.scores))
    part.rename(f"{order.out}-{place}.json")
    # Others may not have done yet.
    Event().wait()


if __name__ == "__main__":
    main()

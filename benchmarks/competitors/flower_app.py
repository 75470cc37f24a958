"""A Flower app, copied into a folder to be deployed.

Its run configuration selects the task: nothing to train, TwoNN on MNIST, or a small convolutional
network on CIFAR-10. After every round the server appends a line of JSON to a file, with the
time, the samples of its updates and the accuracy. FedAvg is evaluated on the server only; each
client reads its samples from disk, and appends a line with the beginning and the end of its
training if `clients` names a file.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

# One assignment per line: Flower looks for these names without running the module.
client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"].to_numpy_ndarrays()
    config, samples = context.run_config, 1
    if config["task"] != "empty":
        arrays, samples = _train(arrays, config, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": samples})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=message)


def _train(arrays: list[Any], config: Any, number: int) -> tuple[list[Any], int]:
    """Train on the samples of one client, at its speed if the configuration has one."""
    import flower_training

    own_path = Path(config["data"]) / f"{number}.npz"
    rates = [float(rate) for rate in str(config.get("samples-per-s", "")).split()]
    began_at = time.time()
    trained = flower_training.train(arrays, own_path, config, rates[number] if rates else None)
    if "clients" in config:
        with Path(config["clients"]).open("a") as file:
            line = {"client": number, "began_at": began_at, "ended_at": time.time()}
            file.write(json.dumps(line) + "\n")
    return trained


class CountedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that counts the samples of the updates of a round."""

    samples = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        received = [reply for reply in replies if reply.has_content()]
        self.samples = sum(int(each.content["metrics"]["num-examples"]) for each in received)
        return super().aggregate_train(server_round, received)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, learners = context.run_config, context.run_config["learners"]
    results = Path(config["results"])

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = _accuracy(arrays, config)
        with results.open("a") as file:
            counts = {"round": number, "samples": strategy.samples}
            line = {**counts, "at": time.time(), "accuracy": accuracy}
            file.write(json.dumps(line) + "\n")
        return MetricRecord({"accuracy": accuracy})

    least = config.get("least-nodes", learners)
    strategy = CountedFedAvg(
        fraction_evaluate=0.0, min_train_nodes=least, min_available_nodes=least
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(_initial(config)),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate,
    )


def _initial(config: Any) -> list[Any]:
    if config["task"] != "empty":
        import flower_training

        return flower_training.initial(config)
    return [np.ones(config["model-bytes"] // 4, np.float32)]


def _accuracy(arrays: ArrayRecord, config: Any) -> float:
    if config["task"] != "empty":
        import flower_training

        test = Path(config["data"]) / "test.npz"
        return flower_training.accuracy(arrays.to_numpy_ndarrays(), test, config)
    return 0.0

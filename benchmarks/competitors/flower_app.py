"""A Flower app, copied into a folder to be deployed.

Its run configuration selects the task: nothing to train, or TwoNN on MNIST. After every round the
server appends a line of JSON to a file, with the time and the accuracy. FedAvg is evaluated on the
server only; each client reads its samples from disk.
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
    if config["task"] == "mnist":
        import flower_mnist

        own_path = Path(config["data"]) / f"{context.node_config['partition-id']}.npz"
        arrays, samples = flower_mnist.train(arrays, own_path, config)
    metrics = MetricRecord({"num-examples": samples})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, learners = context.run_config, context.run_config["learners"]
    results = Path(config["results"])

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = _accuracy(arrays, config)
        with results.open("a") as file:
            line = {"round": number, "at": time.time(), "accuracy": accuracy}
            file.write(json.dumps(line) + "\n")
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=learners, min_available_nodes=learners)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(_initial(config)),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate,
    )


def _initial(config: Any) -> list[Any]:
    if config["task"] == "mnist":
        import flower_mnist

        return flower_mnist.initial(config)
    return [np.ones(config["model-bytes"] // 4, np.float32)]


def _accuracy(arrays: ArrayRecord, config: Any) -> float:
    if config["task"] == "mnist":
        import flower_mnist

        test = Path(config["data"]) / "test.npz"
        return flower_mnist.accuracy(arrays.to_numpy_ndarrays(), test)
    return 0.0

"""Flower's simulation on its Ray backend: FedAvg, a ClientApp for one core each.

`client_resources` are those that its guide begins with, one processor and no graphics card, so that
as many clients run at once as there are cores. Each Ray worker reads the data once.
"""

import os
import sys
import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.competitors.plain_loop import Order, beginning, layers, learners, trained
from benchmarks.harness import usage

RESOURCES = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def client_for(order: Order) -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model = nn.Sequential(*layers(order.widths))
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = learners(order.data, order.learners)
        x, y = own[int(context.node_config["partition-id"])]
        trained(model, x, y, order)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y)}),
            }
        )
        return Message(content=content, reply_to=message)

    return client


def server_for(order: Order) -> ServerApp:
    server, ended_s = ServerApp(), list[float]()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        model = nn.Sequential(*layers(order.widths))

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            if number:
                ended_s.append(time.monotonic())
            if number == order.rounds:
                model.load_state_dict(arrays.to_torch_state_dict())
                unseen_s = sum(usage.cpu_s(each) for each in _children())
                order.write(ended_s, model, unseen_s)
            return MetricRecord({"round": number})

        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=order.learners,
            min_available_nodes=order.learners,
        )
        start = beginning(order.data, [*model.state_dict()])
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(start),
            num_rounds=order.rounds,
            evaluate_fn=evaluate,
        )

    return server


def _children() -> list[int]:
    """Ray's processes that this one started; each brings what it started itself."""
    every = set(usage.descendants(os.getpid()))
    return sorted(every - {below for each in every for below in usage.descendants(each)})


def main() -> None:
    order = Order.read(sys.argv[1])
    run_simulation(
        server_app=server_for(order),
        client_app=client_for(order),
        num_supernodes=order.learners,
        backend_config=RESOURCES,
    )


if __name__ == "__main__":
    main()

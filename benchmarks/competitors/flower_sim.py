"""Flower's simulation on its Ray backend: FedAvg, with one core for each ClientApp.

`client_resources` are the first ones of its guide, one processor and no graphics card, so that
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

from benchmarks.competitors.plain_loop import Job, initial_parameters, layers, learners, train_pass
from benchmarks.harness import usage

RESOURCES = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def client_for(job: Job) -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model = nn.Sequential(*layers(job.widths))
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = learners(job.data, job.learners)
        x, y = own[int(context.node_config["partition-id"])]
        train_pass(model, x, y, job)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y)}),
            }
        )
        return Message(content=content, reply_to=message)

    return client


def server_for(job: Job) -> ServerApp:
    server, ended_s = ServerApp(), list[float]()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        model = nn.Sequential(*layers(job.widths))

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            if number:
                ended_s.append(time.monotonic())
            if number == job.rounds:
                model.load_state_dict(arrays.to_torch_state_dict())
                unseen_s = sum(usage.cpu_s(each) for each in _children())
                job.write(ended_s, model, unseen_s)
            return MetricRecord({"round": number})

        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=job.learners,
            min_available_nodes=job.learners,
        )
        start = initial_parameters(job.data, [*model.state_dict()])
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(start),
            num_rounds=job.rounds,
            evaluate_fn=evaluate,
        )

    return server


def _children() -> list[int]:
    """Return the direct children of this process, which are Ray's."""
    pids = set(usage.descendants(os.getpid()))
    return sorted(pids - {below for pid in pids for below in usage.descendants(pid)})


def main() -> None:
    job = Job.read(sys.argv[1])
    run_simulation(
        server_app=server_for(job),
        client_app=client_for(job),
        num_supernodes=job.learners,
        backend_config=RESOURCES,
    )


if __name__ == "__main__":
    main()

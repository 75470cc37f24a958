"""pfl-research: FederatedAveraging on its SimulatedBackend, with its PyTorch model.

User datasets are tensors in memory, created once, as its docs advise; it keeps their batches and
does not shuffle them. It evaluates users in the first round, which is not counted. Under `torchrun`
the users of a round are split among processes.
"""

import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.competitors.plain_loop import Job, initial_parameters, layers, learners


class Network(nn.Sequential):
    """A module with the methods that pfl requires."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = functional.cross_entropy(self(x), y, reduction="sum")
        return {"loss": Weighted(loss.item(), len(y))}


class Clock(TrainingProcessCallback):
    """Record when each round ended."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.ended_s.append(time.monotonic())
        return False, Metrics()


def main() -> None:
    job = Job.read(sys.argv[1])
    network, clock = Network(*layers(job.widths)), Clock()
    network.load_state_dict(initial_parameters(job.data, [*network.state_dict()]))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    users = [PyTorchTensorDataset(each) for each in learners(job.data, job.learners)]
    sampler = get_user_sampler("minimize_reuse", range(len(users)))
    data = FederatedDataset(users.__getitem__, sampler)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=job.learners,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        NNEvalHyperParams(local_batch_size=None),
        [clock],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        job.write(clock.ended_s, network)


if __name__ == "__main__":
    main()

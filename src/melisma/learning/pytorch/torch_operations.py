"""Floating-point operations of a model, counted by PyTorch during one forward pass."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.torch_trainer import TorchTrainer

# The backward pass takes twice the operations of the forward pass.
PASSES_PER_STEP = 3
COUNTED_SAMPLES = 2


def count_sample_ops(trainer: TorchTrainer, split: Split) -> float:
    """Return the operations to train on one sample once: those of products and convolutions.

    0 if the model has none that PyTorch counts.
    """
    samples = Split(split.samples[:COUNTED_SAMPLES], split.labels[:COUNTED_SAMPLES])
    x, _ = trainer.tensors(samples)
    trainer.model.eval()
    with torch.random.fork_rng(devices=()), torch.no_grad(), FlopCounterMode(display=False) as ops:
        trainer.model(to_model_input(trainer.device.move(x)))
    return float(PASSES_PER_STEP * ops.get_total_flops() / len(samples))

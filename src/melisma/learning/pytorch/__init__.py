"""Training with PyTorch; the only package that imports torch.

::

    models.py          models by name
    optimizers.py      optimizer steps by name
    compute_device.py  the processor or a GPU, and the bound of queued work
    resident_data.py   samples that are moved to a GPU once
    torch_trainer.py   training of one learner
    torch_operations.py  operations of a model, counted
    torch_stepper.py   single SGD steps on one vector
    torch_batched.py   training of many learners as one batched computation
    torch_layers.py    layers of a stack of learners, forward and backward
"""

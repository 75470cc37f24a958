"""Training with PyTorch; the only package that imports torch.

::

    models.py          models by name
    optimizers.py      optimizer steps by name
    torch_trainer.py   training of one learner
    torch_stepper.py   single SGD steps on one vector
    torch_batched.py   training of many learners as one batched computation
    torch_layers.py    layers of a stack of learners, forward and backward
"""

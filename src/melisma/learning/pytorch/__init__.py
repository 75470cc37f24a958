"""PyTorch behind the trainer seam; the only package that imports torch.

::

    models.py          the models of the papers
    optimizers.py      optimizer steps by name
    torch_trainer.py   training of one learner
    torch_stepper.py   single SGD steps on one vector
    torch_batched.py   training of many learners as one batched computation
    torch_layers.py    layers of many learners, forward and backward
"""

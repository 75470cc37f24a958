"""Optimisers that the orchestrator applies to the mean change of a cycle, one file each.

Each is a pure function from the mean change of an array and the state of the optimiser for it to
the step that the array makes, and the next state (Reddi et al. 2021, "Adaptive Federated
Optimization").

::

    server_optimizer.py  applies a step to all trainable arrays, and can undo it
    mean_step.py         the mean change, times a learning rate: FedAvg
    momentum_step.py     momentum: FedAvgM
    nesterov_step.py     Nesterov's momentum
    adam_step.py         Adam: FedAdam
    yogi_step.py         Yogi: FedYogi
"""

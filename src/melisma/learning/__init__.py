"""Training: data sets, shards, models, trainers, benchmarks, aggregation and metrics.

PyTorch is imported by the package `pytorch` only, and only when training starts.

::

    data/               data sets, shards and partitions
    loaded_task.py      the data and the trainer of a task
    task_sizes.py       the sizes of a task that trains
    given_objects.py    models and data that are given as Python objects
    definitions.py      the source of a class or function as a module of its own
    trainer.py          the interface of a trainer
    trainer_factory.py  the trainer of a task
    stepper.py          plain SGD step by step, for peers
    batches.py          batches of samples, also of shards that are still arriving
    stream_state.py     the place in such batches, for another process to go on
    stream_log.py       the changes of such batches, for another machine to repeat them
    batched.py          training of many learners for a simulation
    pytorch/            models, optimizers and trainers of PyTorch
    benchmark.py        measured costs of training and fetching
    parameters.py       parameters as named arrays in one block of bytes
    aggregation.py      the weighted mean of updates
    own_aggregation.py  aggregation by a function on all updates
    robust_aggregation.py  median and trimmed mean
    step_normalization.py  normalisation by local steps
    server/             optimisers that are applied to the mean change
    saved_model.py      models in files
    evaluation.py       the score of a model in a file
    verification/       checks whether an update was trained as reported
    update_guard.py     a bound on the change that one update makes
    compression.py      compression of vectors between peers
    metrics.py          the figures of merit of the papers
"""

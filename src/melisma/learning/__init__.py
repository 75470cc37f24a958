"""What is trained: data sets, models, shards, trainers, benchmarks, aggregation, metrics.

PyTorch is imported by the modules that train, and by no other. The modules::

    data/            data sets, images, shards, partitions
    pytorch/         models, optimisers and trainers of PyTorch
    loaded_task.py   a task with its data and trainer
    task_sizes.py    the sizes of a task, limited and measured
    imports.py       objects that a task names by `package.module:name`
    trainer.py       the interface of trainers
    trainers.py      the trainer of a task
    parameters.py    parameters of a model as named arrays
    benchmark.py     costs of training and fetching on this device
    aggregation.py   the weighted mean of updates
    metrics.py       figures of the papers
    batched.py       training of many simulated learners
    steps.py         single steps of SGD for peers
    compression.py   compression of vectors between peers
"""

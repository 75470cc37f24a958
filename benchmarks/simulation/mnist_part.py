"""A part of MNIST to train on, so that slow devices end a pass within some seconds."""

from melisma.learning.data.datasets import DataSet, Split, load_dataset

SAMPLES = 6600


def some() -> DataSet:
    """The first samples of the training part; all of the test part."""
    data = load_dataset("mnist")
    train = data.train
    return DataSet(Split(train.samples[:SAMPLES], train.labels[:SAMPLES]), data.test)

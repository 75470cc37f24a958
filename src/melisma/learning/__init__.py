"""What is trained: data sets, models, shards, trainers, benchmarks, aggregation, metrics.

PyTorch is imported by the modules that train, and by no other.
"""

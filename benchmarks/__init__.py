"""How fast melisma.axon is beside its peers: `python -m benchmarks`."""

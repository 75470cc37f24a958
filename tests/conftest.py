"""Settings of every test."""

from hypothesis import settings

# How long things take is for the benchmarks to say.
settings.register_profile("melisma", deadline=None)
settings.load_profile("melisma")

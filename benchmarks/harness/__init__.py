"""Processes, environments, timing, tables and documentation pages for all benchmarks."""

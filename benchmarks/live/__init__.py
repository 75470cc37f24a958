"""Runs with processes on this machine, compared with Flower."""

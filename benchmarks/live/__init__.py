"""Runs with processes on this machine beside Flower."""

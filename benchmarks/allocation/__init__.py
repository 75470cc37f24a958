"""Staleness, MED and FEEL beside general solvers."""

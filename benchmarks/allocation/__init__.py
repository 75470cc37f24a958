"""Staleness, MED and FEEL, compared with general solvers."""

"""Benchmarks beside the systems that a user would take instead: `python -m benchmarks NAME`.

::

    axon/           remote calls beside gRPC, aiohttp, Ray, raw sockets and the original Axon
    allocation/     staleness, MED and FEEL beside general solvers
    live/           runs on this machine beside Flower
    simulation/     virtual time beside Flower, pfl-research and a plain loop
    peer/           training without an orchestrator beside p2pfl
    competitors/    the programs that are compared with
    harness/        processes, environments, timing, tables, documentation pages
    requirements/   the packages of each competitor
    results/        the figures of the last runs
"""

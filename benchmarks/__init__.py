"""Benchmarks of Melisma and its competitors: `python -m benchmarks NAME`.

::

    axon/           remote calls, compared with gRPC, aiohttp, Ray, sockets and the original Axon
    allocation/     staleness, MED and FEEL, compared with general solvers
    live/           runs on this machine, compared with Flower
    simulation/     virtual time, compared with Flower, pfl-research and a plain loop
    learning/       ways to aggregate on data that is not alike
    peer/           training without an orchestrator, compared with p2pfl
    competitors/    the programs that Melisma is compared with
    harness/        processes, environments, timing, tables, documentation pages
    requirements/   the packages of each competitor
    results/        the results of the last runs
"""

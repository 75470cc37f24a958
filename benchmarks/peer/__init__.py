"""Training without an orchestrator, compared with p2pfl."""

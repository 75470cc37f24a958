"""Training without an orchestrator beside p2pfl."""

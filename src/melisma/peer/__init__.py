"""Training without an orchestrator: AET-SGD and its baselines, as machines without I/O."""

"""Who trains how much: pure functions from a problem to a plan, one scheme a file."""

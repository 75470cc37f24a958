"""Virtual time beside Flower, pfl-research and a plain loop."""

"""Virtual time, compared with Flower, pfl-research and a plain loop."""

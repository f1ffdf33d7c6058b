"""Experiments: a run as a directory, from config to record, and grids of runs."""

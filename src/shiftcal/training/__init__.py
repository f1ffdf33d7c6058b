"""Training: config, step, loop, checkpoint."""

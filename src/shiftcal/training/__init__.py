"""Training: the step, the loop around it and the state that it moves; no directories."""

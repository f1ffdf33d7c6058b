"""Analysis: the numbers behind the studies of the paper."""

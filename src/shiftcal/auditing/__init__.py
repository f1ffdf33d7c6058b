"""Auditing: any model on its clean and shifted test sets."""

"""Bench: whole runs, from config to record."""

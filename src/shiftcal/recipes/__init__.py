"""Recipes: what to train, as TOML files."""

"""Shifts: clean images in, shifted images out; made as they are used, read from disk, or written to it."""

"""A model that a user names, on images or predictions of theirs: audited, calibrated, exported, shared."""

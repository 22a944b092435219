"""Types, trees, randomness, files, spec strings and codes: what all other parts use."""

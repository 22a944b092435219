"""The frame of every run."""

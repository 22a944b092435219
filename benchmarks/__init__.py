"""Measurements, side by side with peers in the same run. Ratios, not seconds."""

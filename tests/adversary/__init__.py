"""Random programs over everything that can be combined, and the laws they keep."""

"""Tests of jaxcomp.transforms.optimizers."""

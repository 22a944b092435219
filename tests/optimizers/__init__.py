"""Tests of jaxcomp.optimizers."""

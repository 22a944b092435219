"""The version, on its own so that building a wheel needs no import of jax."""

__version__ = "0.1.0"

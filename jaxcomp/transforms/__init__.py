"""The optax side: a method as an optax transformation, and what stands beside it."""

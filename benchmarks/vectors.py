"""What the benchmarks compress: synthetic vectors, the same in every run."""

import numpy as np

SOURCES = ("gaussian", "heavy", "log-normal")


def draw(source: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers of unit scale.

    Args:
      source: "gaussian"; "heavy", Student's t with 1.5 degrees of freedom, which has no
        variance; "log-normal", exp of a Gaussian with a random sign.
      shape: of the result.
    """
    generator = np.random.default_rng(0)
    if source == "gaussian":
        return generator.standard_normal(shape, np.float32)
    if source == "heavy":
        return generator.standard_t(1.5, shape).astype(np.float32)
    if source == "log-normal":
        magnitudes = np.exp(generator.standard_normal(shape, np.float32))
        return np.where(generator.random(shape) < 0.5, -magnitudes, magnitudes)
    raise ValueError(f"unknown source {source!r}; valid: {', '.join(SOURCES)}")

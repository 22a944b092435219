"""What a person can mend in the folder of a run."""

__all__ = ["RunError"]


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message says what to do."""

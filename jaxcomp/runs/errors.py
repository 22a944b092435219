"""Errors of run folders that a user can correct."""

from jaxcomp.errors import UserError

__all__ = ["RunError"]


class RunError(UserError):
    """A run folder that cannot be used as asked; the message says what to do."""

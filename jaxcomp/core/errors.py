"""What a person can mend, apart from what only a programmer can."""

import contextlib
from collections.abc import Iterator


class UserError(ValueError):
    """A name, a value, a file, a configuration or data that is not as it has to be.

    Its message says what was found and what would be right, so that commands show it
    alone. Any other error is a fault of the program and keeps its traceback.

    Example:
      >>> from jaxcomp import make_compressor
      >>> try:
      ...     make_compressor("top_k(keep=5)")
      ... except UserError as error:
      ...     print(str(error).splitlines()[0])
      top_k: keep is the fraction kept, in (0, 1], not 5
    """

    __module__ = "jaxcomp"  # where users find it, and what tracebacks show
    exit_code = 2  # of a command that ends with this error


class RunFailed(UserError):
    """A run that began as it should and cannot go on, such as one that diverged."""

    __module__ = "jaxcomp.core.errors"

    exit_code = 1


def message_of(error: BaseException) -> str:
    """What an error says to a person; a fault of the program with its type.

    Example:
      >>> message_of(UserError("no such file")), message_of(KeyError("a"))
      ('no such file', "KeyError: 'a'")
    """
    is_plain = isinstance(error, UserError)
    return str(error) if is_plain else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Let errors of the user in the body begin with the place that they are about.

    Example:
      >>> with within("warmup"):
      ...     raise UserError("a duration is positive")
      Traceback (most recent call last):
      jaxcomp.UserError: warmup: a duration is positive
    """
    try:
        yield
    except UserError as error:
        raise type(error)(f"{place}: {error}") from None

"""Compiled programs are kept on disk, so that a resumed run compiles nothing."""

import os
from typing import Any

import jax

from jaxcomp.errors import UserError
from jaxcomp.files import expanded

__all__ = ["keep_programs"]

_FOLDER = "~/.cache/jaxcomp/programs"
_LEAST = "persistent_cache_min_compile_time_secs"


def keep_programs() -> str:
    """Let jax keep every compiled program; call it before the first is compiled.

    jax's own settings come first: JAX_COMPILATION_CACHE_DIR names another folder, and
    JAX_ENABLE_COMPILATION_CACHE=0 keeps nothing.

    Returns:
      Where programs are kept, as a line for the console.
    """
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return "compiled programs are not kept: JAX_ENABLE_COMPILATION_CACHE is off"
    folder = settings.jax_compilation_cache_dir
    if folder is None:
        try:
            path = expanded(_FOLDER)
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, UserError) as error:
            return (
                f"compiled programs are not kept: {error}. "
                "JAX_COMPILATION_CACHE_DIR names another folder"
            )
        folder = str(path)
        settings.update("jax_compilation_cache_dir", folder)
    if f"JAX_{_LEAST.upper()}" not in os.environ:
        settings.update(f"jax_{_LEAST}", 0.0)  # by default the short ones are lost
    return f"compiled programs are kept in {folder}"

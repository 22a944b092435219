"""`Info`: what a step reports of the gradient it was given and of what it sent."""

import jax
import jax.numpy as jnp

from jaxcomp.core.coding.payloads import payload_values
from jaxcomp.core.trees import norm, quick_norm, spec_of, widen
from jaxcomp.core.types import Array, Compressor, Info, Payload, Tree


def measure(
    given: Tree, sent: Tree, codec: Compressor | None = None, payload: Payload = None
) -> Info:
    """`Info` of one exchange: |given - sent|^2 / |given|^2, 0 for a zero tree.

    Args:
      given: what the exchange was given.
      sent: what counts as sent by this worker, as in `Averaged`.
      codec: the compressor; its figures of `payload` are reported too.
      payload: of this worker.
    """
    missing = jax.tree.map(jnp.subtract, widen(given), widen(sent))
    return measure_missing(given, missing, codec, payload)


def measure_missing(
    given: Tree,
    missing: Tree,
    codec: Compressor | None = None,
    payload: Payload = None,
    is_own: bool = False,
) -> Info:
    """As `measure`, from given minus sent in place of what was sent.

    Args:
      given: what the exchange was given.
      missing: given minus sent, in at least float32.
      codec: as in `measure`.
      payload: of this worker.
      is_own: whether `sent` is what the payload decodes to.
    """
    spec = spec_of(given)
    figures = codec.figures if codec else ()
    extra = {figure.name: figure.of(payload, spec) for figure in figures}
    lost = quick_norm(missing)
    if is_own and codec is not None and codec.clear is not None:
        # Each element is sent as it is, or missing: nobody has to read `given` again.
        whole = norm([lost, *payload_values(payload)])
    else:
        whole = quick_norm(widen(given))
    return report(lost, whole)._replace(extra=extra)


def report(lost: Array, whole: Array) -> Info:
    """`Info` from the norm of what is lost and the norm of what was given.

    It takes norms, because their squares may be too large for float32.
    """
    relative = jnp.square(lost / jnp.where(whole == 0, 1.0, whole))
    return Info(relative, lost, residual_norm=jnp.float32(0), given_norm=whole)


def nothing_lost(figures: tuple[str, ...] = ()) -> Info:
    """`Info` of a step that loses nothing; a method's figures are 0."""
    zero = jnp.zeros((), jnp.float32)
    return Info(zero, zero, zero, dict.fromkeys(figures, zero))


def figure_names(codec: Compressor) -> tuple[str, ...]:
    """The keys that `measure` puts into `Info.extra` for a codec."""
    return tuple(figure.name for figure in codec.figures)

"""A language model of LSTM layers, whose state goes on from one call to the next."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared

Carry = dict[str, jax.Array]


def _uniform(bound: float) -> nn.initializers.Initializer:
    """Initialisation with values that are uniform in [-bound, bound]."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class LstmLayer(nn.Module):
    """One layer of long short-term memory over a sequence.

    i, f, g, o = split(x W + h U + b)
    c = sigmoid(f) c + sigmoid(i) tanh(g)
    h = sigmoid(o) tanh(c)

    All weights are uniform in +-1 / sqrt(width).

    Args:
      width: number of elements of h and c.
      dtype: dtype of the products; h and c are float32.
    """

    width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, h: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """All h [batch, time, width], and the last h and c [batch, width]."""
        wide, uniform = 4 * self.width, _uniform(self.width**-0.5)
        inputs = nn.Dense(
            wide,
            dtype=self.dtype,
            kernel_init=uniform,
            bias_init=uniform,
            name="inputs",
        )(x)
        # The products with x are one for all places; the scan is left with h U.
        kernel = self.param("recurrent", uniform, (self.width, wide), jnp.float32)
        kernel = kernel.astype(self.dtype)

        def step(
            carry: tuple[jax.Array, jax.Array], own: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = carry
            both = (own + h.astype(self.dtype) @ kernel).astype(jnp.float32)
            i, f, g, o = jnp.split(both, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        (h, c), every = jax.lax.scan(step, (h, c), inputs.swapaxes(0, 1))
        return every.swapaxes(0, 1), h, c


class Lstm(shared.Model):
    """LSTM layers between an embedding and logits for the next word.

    logits = dropout(h_L) E^T + b, with h_0 = dropout(E[token]) and
    h_l = LSTM(dropout(h_{l-1})); E is the embedding, or another matrix if the weights
    are not tied. As in ChocoSGD's model, which is the word-level example of PyTorch, E
    is uniform in +-0.1 and b is 0. That example has two biases in each gate, which are
    always added; here, as in Zaremba et al., it is one.

    Args:
      vocabulary: number of different words.
      width: number of elements of an embedding, and of each layer's state.
      layers: number of layers.
      dropout: probability that a value between two layers becomes zero. If it is above
        0, training needs the random key `rngs={"dropout": key}`.
      tied: whether embedding and logits share one matrix.
      dtype: dtype of the products; state and logits are float32.

    Example:
      >>> model = Lstm(vocabulary=9, width=4)
      >>> tokens, key = jnp.zeros((2, 5), jnp.int32), jax.random.key(0)
      >>> variables = model.init(key, tokens, model.carry(2), False)
      >>> logits, carry = model.apply(variables, tokens, model.carry(2), False)
      >>> logits.shape, carry["h"].shape
      ((2, 5, 9), (2, 2, 4))

    References:
      Zaremba et al., Recurrent Neural Network Regularization, arXiv:1409.2329, 2014.
      Press and Wolf, Using the Output Embedding to Improve Language Models,
      arXiv:1608.05859, 2016.
    """

    vocabulary: int
    width: int = 200
    layers: int = 2
    dropout: float = 0.0
    tied: bool = True
    dtype: DTypeLike = jnp.float32

    def carry(self, examples: int) -> Carry:
        """The state before the first word, zeros [examples, layers, width]."""
        zeros = jnp.zeros((examples, self.layers, self.width))
        return {"h": zeros, "c": zeros}

    @nn.compact
    def __call__(
        self, tokens: jax.Array, carry: Carry, train: bool
    ) -> tuple[jax.Array, Carry]:
        """Logits [batch, time, vocabulary] of the words that follow, and the carry."""

        def dropped(x: jax.Array) -> jax.Array:
            return nn.Dropout(self.dropout)(x, deterministic=not train)

        embed = nn.Embed(
            self.vocabulary,
            self.width,
            dtype=self.dtype,
            embedding_init=_uniform(0.1),
            name="embedding",
        )
        x, hs, cs = embed(tokens), [], []
        for layer in range(self.layers):
            own = LstmLayer(self.width, self.dtype, name=f"layer{layer + 1}")
            x, h, c = own(dropped(x), carry["h"][:, layer], carry["c"][:, layer])
            hs, cs = [*hs, h], [*cs, c]
        x = dropped(x)
        if self.tied:
            bias = self.param("bias", nn.initializers.zeros, (self.vocabulary,))
            logits = embed.attend(x).astype(jnp.float32) + bias[None, None]
        else:
            logits = nn.Dense(
                self.vocabulary,
                dtype=self.dtype,
                kernel_init=_uniform(0.1),
                name="logits",
            )(x).astype(jnp.float32)
        return logits, {"h": jnp.stack(hs, 1), "c": jnp.stack(cs, 1)}

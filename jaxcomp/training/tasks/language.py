"""Language modelling: a text, a recurrent model and the loss of the next word."""

import functools
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count
from jaxcomp.core.types import Array, Tree
from jaxcomp.data.text import Text
from jaxcomp.runs.keys import check_keys
from jaxcomp.training.tasks.named import half_precision, named
from jaxcomp.training.tasks.task import PERPLEXITY, Batch, Learnt, Sums, Task, Variables


class Chunks(NamedTuple):
    """A text that is read in columns, all of them at once, a chunk at a time.

    Chunk i of column j is row i * columns + j, so that rows that are `columns` apart go
    on with one another.
    """

    tokens: np.ndarray  # int32 [rows, length + 1]: the last is the next row's first
    counted: np.ndarray  # float32 [rows, length]: 1 for words to predict, 0 for padding
    first: np.ndarray  # float32 [rows]: 1 where a column begins


def language(
    config: Any, workers: Any, bptt: Count = 35, part: Literal["test", "valid"] = "test"
) -> Task:
    """The task of predicting each next word of a config's text with its model.

    The training text is cut into `batch_size` columns, which the workers share. A step
    reads `bptt` words of each column, and hands the state of the model on to the next
    step; the gradient ends there. Columns begin with the model's first state, so in
    each epoch anew. Words that fill no step of all columns are left out. Evaluations
    read every word, in `eval_batch_size` or `batch_size` columns.

    Args:
      config: its dataset, model, data_dir and compute_dtype.
      workers: of the run.
      bptt: words of a column in a step: truncated backpropagation through time.
      part: of the text, for evaluations.
    """
    needed = ("compute_dtype", "data_dir", "partition")
    check_keys(config, *needed, dataset="grammar", model="lstm")
    if config.partition != "dealt":
        message = "deals the columns of a text in their order: partition is 'dealt'"
        raise UserError(f"{message}, not {config.partition!r}")
    usual = {"data_dir": config.data_dir or None}
    text = named("language", "dataset", config.dataset, Text, usual)
    if part not in text.parts:
        message = f"has no part {part!r}. It has {', '.join(text.parts)}"
        raise UserError(f"{config.dataset} {message}")
    usual = {"vocabulary": len(text.vocabulary), **half_precision(config)}
    model = named("language", "model", config.model, nn.Module, usual)
    columns = config.eval_batch_size or config.batch_size
    about = f"{len(text.vocabulary):,} words"
    if part in text.source_loss:
        best = PERPLEXITY.of(text.source_loss[part], 0.0)
        about += f"; perplexity of their source {best:.2f}"
    return language_task(
        model,
        cut(text.parts["train"], config.batch_size, bptt),
        cut_whole(text.parts[part], columns, bptt),
        batch_size=config.batch_size,
        workers=workers.size,
    )._replace(model=config.model, data=f"{config.dataset} ({about})")


def language_task(
    model: Any, train: Chunks, test: Chunks, *, batch_size: int, workers: int
) -> Task:
    """The task of a model that reads one text on, chunk after chunk.

    Args:
      model: flax module, called as model(tokens, carry, train), with a method
        `carry(examples)` for the carry before the first word.
      train: `batch_size` columns.
      test: the columns of an evaluation.
      batch_size: of all workers together.
      workers: their number.
    """
    order = np.arange(len(train.first)).reshape(-1, workers, batch_size // workers)

    def init(key: Array) -> Variables:
        tokens = jnp.zeros((1, 1), jnp.int32)
        start = functools.partial(model.init, train=False)
        variables = jax.jit(start)(key, tokens, model.carry(1))
        return Variables(variables["params"], {})

    def read(
        params: Tree, carry: Tree, batch: Batch, train: bool, **rngs: Any
    ) -> tuple[Sums, Tree]:
        tokens, counted, first = batch
        # An example whose column begins has read nothing yet.
        carry = jax.tree.map(
            lambda old, new: jnp.where(_along(first, old) > 0, new, old),
            carry,
            model.carry(len(first)),
        )
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits, carry = model.apply({"params": params}, inputs, carry, train, **rngs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        hits = (jnp.argmax(logits, -1) == targets).astype(jnp.float32)
        sums = (jnp.sum(losses * counted), jnp.sum(hits * counted), jnp.sum(counted))
        return Sums(*sums), jax.lax.stop_gradient(carry)

    def loss(
        params: Tree, stats: Tree, carry: Tree, batch: Batch, key: Array
    ) -> tuple[Array, Learnt]:
        sums, carry = read(params, carry, batch, True, rngs={"dropout": key})
        mean, accuracy = sums.loss / sums.examples, sums.correct / sums.examples
        return mean, Learnt(stats, carry, accuracy)

    def score(
        variables: Variables, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Sums, Tree]:
        tokens, counted, first = batch
        batch = (tokens, counted * weights[:, None], first)
        return read(variables.params, carry, batch, False)

    return Task(
        model=type(model).__name__,
        data="text",
        train=train,
        test=test,
        shares=lambda epoch: order,
        init=init,
        loss=loss,
        score=score,
        carry=model.carry,
        measure=PERPLEXITY,
    )


def cut(tokens: np.ndarray, columns: int, length: int) -> Chunks:
    """As many whole chunks of all columns as a text has.

    Args:
      tokens: int32 [tokens].
      columns: of equal length, one after the other in the text.
      length: words to predict of a chunk.

    Example:
      >>> cut(np.arange(10), columns=2, length=2).tokens.tolist()
      [[0, 1, 2], [4, 5, 6], [2, 3, 4], [6, 7, 8]]
    """
    chunks = (len(tokens) - 1) // (columns * length)
    if not chunks:
        message = f"has no chunk of {length} words for each of {columns} columns"
        raise UserError(f"a text of {len(tokens)} words {message}")
    return _cut(tokens, columns, chunks * length, length)


def cut_whole(tokens: np.ndarray, columns: int, length: int) -> Chunks:
    """All words of a text but the first, each to predict once; the rest is padding.

    Args:
      tokens: int32 [tokens], at least two.
      columns: of equal length, one after the other in the text.
      length: words to predict of a chunk.

    Example:
      >>> chunks = cut_whole(np.arange(6), columns=2, length=2)
      >>> chunks.tokens.tolist()
      [[0, 1, 2], [3, 4, 5], [2, 3, 0], [5, 0, 0]]
      >>> chunks.counted.tolist()
      [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    if len(tokens) < 2:
        raise UserError(f"a text of {len(tokens)} words has no next word to predict")
    return _cut(tokens, columns, -(-(len(tokens) - 1) // columns), length)


def _cut(tokens: np.ndarray, columns: int, height: int, length: int) -> Chunks:
    """Chunks of columns that predict `height` words each, or what is left of them."""
    chunks = -(-height // length)
    within = np.arange(chunks)[:, None, None] * length + np.arange(length + 1)
    place = np.arange(columns)[None, :, None] * height + within
    real = (within <= height) & (place < len(tokens))
    found = np.where(real, tokens[np.minimum(place, len(tokens) - 1)], 0)
    first = np.repeat(np.arange(chunks) == 0, columns)
    return Chunks(
        tokens=found.astype(np.int32).reshape(-1, length + 1),
        counted=real[..., 1:].astype(np.float32).reshape(-1, length),
        first=first.astype(np.float32),
    )


def _along(examples: Array, like: Array) -> Array:
    """One number for each example, to be combined with an array of examples."""
    return examples.reshape(-1, *[1] * (like.ndim - 1))

"""Sentences of a random grammar, whose perplexity is known: the embedded text.

No text of others has to be kept in the repository, and the loss that no model can beat
is known, which it is not of a real text. The grammar asks of a model what real text
does: words of very different frequency, agreement between words that stand far apart,
nested clauses, pronouns that go back to the sentence before, and topics that last for
hundreds of words. So a model learns rare words from few gradients, and gains by the
state that it carries from batch to batch.
"""

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np

from jaxcomp.specs import Range, method

from .text import Text

__all__ = ["grammar"]

# Never to be changed: results on other sentences could not be compared.
_SEED = 20261119
_TEST_TOKENS = 10_000

_NOUNS = {
    "sea": "sailor wave ship gull anchor captain whale island rope sail harbour storm "
    "net crab lantern pirate dolphin mast oar shell reef tide diver buoy",
    "farm": "farmer cow barn hen tractor field goat fence dog seed plough orchard lamb "
    "donkey bucket mill hedge duck pond rooster horse meadow shepherd wagon",
    "town": "clerk tower market bridge tram baker lamp square guard bell poster street "
    "dancer statue letter mayor window tailor cart corner banker roof gate clock",
}
_VERBS = (
    "see find follow like hear need fear trust help hide pull know lead meet paint "
    "sell want greet leave move keep draw repair show"
)
_ADJECTIVES = "old small red quiet tall young broken strange green heavy cold brave"
_ONE, _MANY = "one", "many"

# A word, its weight, and the symbols that are derived after it. The words of a symbol
# all differ. So whoever has read the text so far knows the next symbol, and with it the
# exact probability of each word.
_Rule = tuple[str, float, tuple[str, ...]]


@method(given=1)
def grammar(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    tokens: Annotated[int, Range(least=2)] = 100_000,
) -> Text:
    """Sentences of a random grammar: 100,000 words for training and 10,000 for test.

    The text is one derivation of a grammar in Greibach's normal form. Its `source_loss`
    is the mean of -log p(word | all words before) on the test text, under the grammar
    itself.

    Args:
      data_dir: not used, because the text is made here.
      tokens: words of the training text.

    Example:
      >>> text = grammar(tokens=11)
      >>> " ".join(text.vocabulary[word] for word in text.parts["train"])
      'chapter sea it finds a rope . the sailor that the'
    """
    del data_dir
    train, _ = _sentences(tokens, stream=0)
    test, loss = _sentences(_TEST_TOKENS, stream=1)
    vocabulary = tuple(_numbers())
    return Text(name, {"train": train, "test": test}, vocabulary, {"test": loss})


def _sentences(tokens: int, stream: int) -> tuple[np.ndarray, float]:
    """Words as numbers, and the mean loss of the grammar on all but the first."""
    numbers = _numbers()
    table = {
        symbol: (
            np.cumsum([p for _, p, _ in own])[:-1],
            [
                (numbers[word], -np.log(p), following[::-1])
                for word, p, following in own
            ],
        )
        for symbol, own in _rules().items()
    }
    bits = np.random.Philox(np.random.SeedSequence([_SEED, stream]))
    draws = np.random.Generator(bits).random(tokens)
    words, losses, stack = np.empty(tokens, np.int32), np.empty(tokens), ["heading"]
    for place, draw in enumerate(draws):
        borders, own = table[stack.pop()]
        words[place], losses[place], following = own[np.searchsorted(borders, draw)]
        stack.extend(following)
    return words, float(losses[1:].mean())


@functools.cache
def _numbers() -> dict[str, int]:
    """Each word of the grammar and its number."""
    words = (word for own in _rules().values() for word, _, _ in own)
    return {word: i for i, word in enumerate(dict.fromkeys(words))}


@functools.cache
def _rules() -> dict[str, list[_Rule]]:
    """The rules of each symbol; the weights of a symbol are probabilities."""
    rules: dict[str, list[_Rule]] = {
        "heading": [("chapter", 1, ("title",))],
        "title": [(topic, 1, (f"next {topic} one",)) for topic in _NOUNS],
    }
    for number in (_ONE, _MANY):
        rules[f"verb {number}"] = [*_verbs(number, 1)]
    for topic in _NOUNS:
        rules |= _about(topic)
    return {symbol: _normalised(own) for symbol, own in rules.items()}


def _about(topic: str) -> dict[str, list[_Rule]]:
    """The rules of sentences about a topic."""
    both = (_ONE, _MANY)

    def of(symbol: str, number: str = "") -> str:
        return f"{symbol} {topic} {number}".strip()

    def nouns(symbol: str, then: dict[str, tuple[str, ...]]) -> list[_Rule]:
        """Adjectives, after which the symbol comes again, and nouns."""
        found = [*_zipf(_ADJECTIVES.split(), 0.2, (symbol,))]
        for number, following in then.items():
            words = [noun + "s" * (number == _MANY) for noun in _NOUNS[topic].split()]
            found += _zipf(words, 0.8 / len(then), following)
        return found

    rules = {}
    for number in both:
        go_on = (of("object"), of("next", number))
        rules |= {
            of("next", number): [
                ("it" if number == _ONE else "they", 0.35, (of("predicate", number),)),
                ("the", 0.45, (of("subject"),)),
                ("every", 0.1, (of("subject", _ONE),)),
                ("some", 0.085, (of("subject", _MANY),)),
                ("chapter", 0.015, ("title",)),
            ],
            of("subject", number): nouns(
                of("subject", number), {number: (of("after", number),)}
            ),
            of("predicate", number): [*_verbs(number, 1, go_on)],
            of("after", number): [
                *_verbs(number, 0.8, go_on),
                ("that", 0.2, (of("clause"), f"verb {number}", *go_on)),
            ],
            of("inner", number): [
                *_verbs(number, 0.85),
                ("that", 0.15, (of("clause"), f"verb {number}")),
            ],
        }
    return rules | {
        of("subject"): nouns(of("subject"), {n: (of("after", n),) for n in both}),
        of("clause"): [("the", 1, (of("clause noun"),))],
        of("clause noun"): nouns(
            of("clause noun"), {n: (of("inner", n),) for n in both}
        ),
        of("object"): [
            (".", 0.2, ()),
            ("the", 0.55, (of("thing"),)),
            ("a", 0.25, (of("thing", _ONE),)),
        ],
        of("thing"): nouns(of("thing"), dict.fromkeys(both, (of("tail"),))),
        of("thing", _ONE): nouns(of("thing", _ONE), {_ONE: (of("tail"),)}),
        of("tail"): [
            (".", 0.7, ()),
            ("and", 0.1, (of("other"),)),
            ("that", 0.1, (of("clause"), of("tail"))),
            ("beside", 0.1, (of("other"),)),
        ],
        of("other"): [("the", 0.6, (of("thing"),)), ("a", 0.4, (of("thing", _ONE),))],
    }


def _verbs(
    number: str, share: float, following: tuple[str, ...] = ()
) -> Iterator[_Rule]:
    return _zipf([v + "s" * (number == _ONE) for v in _VERBS.split()], share, following)


def _zipf(
    words: Iterable[str], share: float, following: tuple[str, ...]
) -> Iterator[_Rule]:
    """Rules whose weights fall as 1 / rank and sum up to a share."""
    words = list(words)
    total = sum(1 / rank for rank in range(1, len(words) + 1))
    for rank, word in enumerate(words, start=1):
        yield word, share / rank / total, following


def _normalised(own: list[_Rule]) -> list[_Rule]:
    total = sum(weight for _, weight, _ in own)
    return [(word, weight / total, following) for word, weight, following in own]

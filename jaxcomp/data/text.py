"""Texts: a vocabulary, tokens, a generated grammar, and files."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from jaxcomp.core.files import expanded, write_atomically
from jaxcomp.core.specs import Range, build, method
from jaxcomp.data.archives import read_members
from jaxcomp.data.dataset import DataError
from jaxcomp.data.prepare import DataDir, Preparable, Progress, prepared

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"  # the end of a line; a word that is not in training
_VOCABULARY = "vocabulary.txt"


class Text(NamedTuple):
    """A text for training and others for evaluation."""

    name: str
    parts: Mapping[str, np.ndarray]  # of `PARTS`: int32 [tokens]
    vocabulary: tuple[str, ...]  # the word of each number
    # Mean loss in nats of who knows how the text was made, by part; {}: nobody does.
    source_loss: Mapping[str, float] = {}


def vocabulary_of(text: str) -> tuple[str, ...]:
    """All words of a training text, in the order in which they first occur.

    Lines end in the word `<eos>`; `<unk>` is last, unless the text has it already.

    Example:
      >>> vocabulary_of("a b a\\nc\\n")
      ('a', 'b', '<eos>', 'c', '<unk>')
    """
    return tuple(dict.fromkeys([*words_of(text), UNKNOWN]))


def read_folder(folder: Path, name: str) -> Text:
    """The text of a folder with train.txt, test.txt and perhaps valid.txt.

    The vocabulary is that of vocabulary.txt. Where there is no such file, it is that of
    train.txt, and it is kept, so that the numbers of words stay the same if train.txt
    grows.

    Args:
      folder: with the files.
      name: of the text.

    Raises:
      DataError: a file is missing, or is no text in UTF-8.
    """
    needed = [part for part in PARTS if part != "valid" or _file(folder, part).exists()]
    texts = {part: _read(_file(folder, part)) for part in needed}
    if (folder / _VOCABULARY).exists():
        vocabulary = tuple(_read(folder / _VOCABULARY).splitlines())
    else:
        vocabulary = vocabulary_of(texts["train"])
        with contextlib.suppress(OSError):  # a folder that one may only read
            _keep(vocabulary, folder)
    number = {word: place for place, word in enumerate(vocabulary)}
    if len(number) != len(vocabulary) or not {END, UNKNOWN} <= number.keys():
        message = f"has to name {END}, {UNKNOWN} and every other word once; remove it"
        raise DataError(f"{folder / _VOCABULARY} {message}")
    parts = {part: _numbers(text, number) for part, text in texts.items()}
    return Text(name, parts, vocabulary)


def write_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """Keep texts as plain files, and last the vocabulary of the training text.

    Args:
      folder: to be made.
      texts: the text of each part.
    """
    folder.mkdir(parents=True)
    for part, text in texts.items():
        write_atomically(_file(folder, part), text)
    _keep(vocabulary_of(texts["train"]), folder)


def _keep(vocabulary: Sequence[str], folder: Path) -> None:
    write_atomically(folder / _VOCABULARY, "".join(f"{w}\n" for w in vocabulary))


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.txt"


def words_of(text: str) -> Sequence[str]:
    """The words of a text, which are divided by spaces, and `<eos>` after each line."""
    return [word for line in text.splitlines() for word in (*line.split(), END)]


def _numbers(text: str, number: Mapping[str, int]) -> np.ndarray:
    unknown = number[UNKNOWN]
    return np.array([number.get(word, unknown) for word in words_of(text)], np.int32)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


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
    vocabulary = tuple(_number_words())
    return Text(name, {"train": train, "test": test}, vocabulary, {"test": loss})


def _sentences(tokens: int, stream: int) -> tuple[np.ndarray, float]:
    """Words as numbers, and the mean loss of the grammar on all but the first."""
    numbers = _number_words()
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
def _number_words() -> dict[str, int]:
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


class TextSource(NamedTuple):
    """The files of a known text, one for each part."""

    name: str
    members: tuple[str, str, str]  # train, valid and test, in an archive or a folder
    tokens: tuple[int, int, int]  # of them, with the ends of lines
    words: int  # of the vocabulary

    @property
    def about(self) -> str:
        """What it holds, in one line."""
        train, valid, test = self.tokens
        return f"{train} words for training, {valid} and {test} to look and to test."


SOURCES = {
    source.name: source
    for source in (
        TextSource(
            "ptb",
            ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
            (929_589, 73_760, 82_430),
            10_000,
        ),
        TextSource(
            "wikitext2",
            ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
            (2_088_628, 217_646, 245_569),
            33_278,
        ),
    )
}


def load(spec: str, *, data_dir: DataDir = None) -> Text:
    """The text that a spec string names.

    Args:
      spec: a name in `REGISTRY`, with or without arguments.
      data_dir: where prepared texts lie, as in `prepare.data_root`.

    Example:
      >>> load("grammar(tokens=500)").parts["train"].shape
      (500,)
    """
    return build(spec, REGISTRY, "text", data_dir)


def from_folder(data_dir: DataDir, path: str) -> Text:
    """A text of your own: a folder with train.txt, test.txt and perhaps valid.txt.

    Args:
      data_dir: not used.
      path: of the folder; see `text.read_folder`.
    """
    del data_dir
    folder = expanded(path)
    return read_folder(folder, folder.name)


def prepared_text(source: TextSource) -> Preparable:
    """A folder of its parts and its vocabulary, from its three files."""

    def write(path: Path, new: Path, progress: Progress) -> str:
        del progress  # it takes a moment
        found = read_members(path, source.members)
        write_folder(new, _checked(found, source, path))
        return "counts of words"

    counts = ", ".join(f"{count:,}" for count in source.tokens)
    what = f"{counts} words for train, valid and test, {source.words:,} different ones,"
    by_hand = (
        "because no publisher offers its plain text with a checksum. Fetch "
        f"{', '.join(source.members)}"
    )
    name = source.name
    return Preparable(name, what, name, write, _VOCABULARY, by_hand=by_hand)


def _load(source: TextSource, data_dir: DataDir = None) -> Text:
    return read_folder(prepared(prepared_text(source), data_dir), source.name)


def _checked(
    found: Mapping[str, bytes], source: TextSource, archive: Path
) -> dict[str, str]:
    """The texts of all parts, if they are as long as they have to be."""
    texts = {}
    for part, member, tokens in zip(PARTS, source.members, source.tokens, strict=True):
        where = f"{archive}: {member}"
        try:
            texts[part] = found[member].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is no text in UTF-8: {error}") from error
        if (count := len(words_of(texts[part]))) != tokens:
            message = f"has {count:,} words and ends of lines, expected {tokens:,}"
            raise DataError(f"{where} {message}")
    if (words := len(vocabulary_of(texts["train"]))) != source.words:
        message = f"has {words:,} different words, expected {source.words:,}"
        raise DataError(f"{archive}: {source.members[0]} {message}")
    return texts


REGISTRY: dict[str, Callable[..., Text]] = {
    "grammar": grammar,
    "folder": from_folder,
    **{name: functools.partial(_load, source) for name, source in SOURCES.items()},
}

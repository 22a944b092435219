"""Texts: the grammar's own perplexity, files and vocabularies, what is refused."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.cli import main
from jaxcomp.data import DataError
from jaxcomp.data import text as texts
from jaxcomp.data.prepare import prepare
from jaxcomp.data.text import (
    grammar,
    read_folder,
    write_folder,
)


def entropy_rate() -> float:
    """The mean loss, in nats, of the grammar itself on an endless text of its own.

    sum_A v_A H_A / sum_A v_A, where H_A is the entropy of the rules of the symbol A,
    and v_A says how often it is derived: v = v M, and M_AB is the mean number of B in
    the rules of A.
    """
    rules = texts._rules()
    symbols = {symbol: i for i, symbol in enumerate(rules)}
    asked, entropy = np.zeros((len(rules),) * 2), np.zeros(len(rules))
    for symbol, own in rules.items():
        for _, p, following in own:
            entropy[symbols[symbol]] -= p * np.log(p)
            for other in following:
                asked[symbols[symbol], symbols[other]] += p
    values, vectors = np.linalg.eig(asked.T)
    often = np.abs(np.real(vectors[:, np.argmin(np.abs(values - 1))]))
    return float(often @ entropy / often.sum())


ENTROPY = entropy_rate()


def test_the_grammar_s_loss_on_its_text_is_its_entropy():
    """The mean of 10,000 words, of which each has a deviation of about 1.3."""
    text = grammar(tokens=2)
    assert text.source_loss["test"] == pytest.approx(ENTROPY, abs=0.06)
    # Far below what the frequencies of words alone would give.
    shares = np.bincount(text.parts["test"]) / len(text.parts["test"])
    shares = shares[shares > 0]
    assert 0.6 * -np.sum(shares * np.log(shares)) > ENTROPY


def test_the_grammar_gives_the_same_text_for_ever():
    one, other = grammar(tokens=300), grammar(tokens=200)
    np.testing.assert_array_equal(one.parts["train"][:200], other.parts["train"])
    np.testing.assert_array_equal(one.parts["test"], other.parts["test"])
    words = [one.vocabulary[word] for word in one.parts["train"][:6]]
    assert words == ["chapter", "sea", "it", "finds", "a", "rope"]
    assert one.name == "grammar(tokens=300)"


def test_a_folder_is_read_with_the_vocabulary_of_its_training_text(tmp_path):
    (tmp_path / "train.txt").write_text("a b\nb c\n")
    (tmp_path / "test.txt").write_text("c d a\n")
    text = read_folder(tmp_path, "own")
    assert text.vocabulary == ("a", "b", "<eos>", "c", "<unk>")
    assert text.parts["train"].tolist() == [0, 1, 2, 1, 3, 2]
    assert text.parts["test"].tolist() == [3, 4, 0, 2]
    assert set(text.parts) == {"train", "test"}
    # The kept vocabulary decides: numbers stay when the text grows.
    (tmp_path / "train.txt").write_text("z a b\nb c\n")
    again = texts.load(f"folder(path={str(tmp_path)!r})")
    assert again.vocabulary == text.vocabulary
    assert again.parts["train"].tolist() == [4, 0, 1, 2, 1, 3, 2]


def test_a_vocabulary_that_fits_nothing_is_refused(tmp_path):
    write_folder(tmp_path / "own", {"train": "a\n", "test": "a\n"})
    (tmp_path / "own" / "vocabulary.txt").write_text("a\na\n<eos>\n<unk>\n")
    with pytest.raises(DataError, match=r"vocabulary.txt has to name .* remove it"):
        read_folder(tmp_path / "own", "own")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "train.txt: No such file"), (b"\xff\xfe", "no text in UTF-8")],
)
def test_files_that_are_no_text_are_refused(content, message, tmp_path):
    (tmp_path / "test.txt").write_text("a\n")
    if content:
        (tmp_path / "train.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_folder(tmp_path, "own")


TOY = texts.TextSource(
    "toy", ("toy.train.txt", "toy.valid.txt", "toy.test.txt"), (5, 2, 3), 5
)
FILES = {"toy.train.txt": "a b\nc\n", "toy.valid.txt": "a\n", "toy.test.txt": "b x\n"}


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A known text whose files lie in a folder and in a tar."""
    monkeypatch.setitem(texts.SOURCES, "toy", TOY)
    loaded = texts._load  # what the registry has for each source
    monkeypatch.setitem(texts.REGISTRY, "toy", lambda given: loaded(TOY, given))
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    with tarfile.open(tmp_path / "toy.tgz", "w:gz") as archive:
        archive.add(folder, "simple-examples/data")
    return tmp_path


@pytest.mark.parametrize("archive", ["files", "toy.tgz"])
def test_a_known_text_is_prepared_and_read(toy, archive, capsys):
    where = f"--data-dir={toy / 'data'}"
    assert main(["data", "prepare", "toy", where, f"--archive={toy / archive}"]) == 0
    assert "5, 2, 3 words for train, valid and test" in capsys.readouterr().out
    text = texts.load("toy", data_dir=toy / "data")
    assert {part: len(tokens) for part, tokens in text.parts.items()} == {
        "train": 5,
        "valid": 2,
        "test": 3,
    }
    assert (toy / "data/toy/vocabulary.txt").read_text().split()[0] == "a"
    assert main(["data", "prepare", "toy", where]) == 0
    assert "already prepared" in capsys.readouterr().out
    assert main(["data", "list", where]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines)
    assert listed["toy"].startswith("prepared ")
    assert listed["ptb"].startswith("not prepared ")
    assert listed["grammar"].startswith("built in")


def test_another_text_is_refused(toy, capsys):
    (toy / "files" / "toy.test.txt").write_text("b x y\n")
    where = [f"--data-dir={toy / 'data'}", f"--archive={toy / 'files'}"]
    assert main(["data", "prepare", "toy", *where]) == 1
    assert "has 4 words and ends of lines, expected 3" in capsys.readouterr().err
    (toy / "files" / "toy.test.txt").unlink()
    assert main(["data", "prepare", "toy", *where]) == 1
    assert "toy.test.txt" in capsys.readouterr().err
    assert not (toy / "data" / "toy").exists()


def test_what_is_missing_is_told_with_a_command(tmp_path):
    with pytest.raises(DataError, match="jaxcomp data prepare ptb --archive FOLDER"):
        texts.load("ptb", data_dir=tmp_path)
    with pytest.raises(DataError, match="not downloaded here"):
        prepare(texts.prepared_text(texts.SOURCES["ptb"]), data_dir=tmp_path)
    with pytest.raises(ValueError, match="needs path"):
        texts.load("folder")

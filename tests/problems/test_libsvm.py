"""The reader of LIBSVM text: what files say, whatever the blocks, and what is wrong."""

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcomp.convex.problems import Rows, load, read
from jaxcomp.core.errors import UserError

SMALL = "+1 1:0.5 3:-2e-1\n-1 2:1\n-1\n+1 1:7 2:8 3:9\n"


def write(folder: Path, text: str | bytes, name: str = "data") -> Path:
    content = text.encode() if isinstance(text, str) else text
    packers = {".gz": gzip.compress, ".bz2": bz2.compress}
    path = folder / name
    path.write_bytes(packers.get(path.suffix, bytes)(content))
    return path


def whole(features) -> np.ndarray:
    if not isinstance(features, Rows):
        return features
    result = np.zeros((len(features.values), features.width), np.float32)
    for row, indices, values in zip(result, *features[:2], strict=True):
        np.add.at(row, indices, values)
    return result


EXPECTED = [[0.5, 0, -0.2], [0, 1, 0], [0, 0, 0], [7, 8, 9]]


@pytest.mark.parametrize("name", ["data", "data.txt", "data.gz", "data.bz2"])
def test_files_in_any_packing(tmp_path, name):
    features, labels = read(write(tmp_path, SMALL, name))
    np.testing.assert_allclose(whole(features), EXPECTED)
    assert labels.tolist() == [1, -1, -1, 1]
    assert features.dtype == labels.dtype == np.float32


@pytest.mark.parametrize(
    "text",
    [
        "\n# made by hand\n" + SMALL.replace("\n", " # note 5:5\n\n"),
        SMALL.replace("\n", "\r\n").replace(" ", " \t ").rstrip(),
        SMALL.replace("+1 ", "1.0 ").replace("-1 ", "0 ").replace("\n-1", "\n0"),
    ],
)
def test_spacing_comments_and_spellings_do_not_matter(tmp_path, text):
    features, labels = read(write(tmp_path, text))
    np.testing.assert_allclose(whole(features), EXPECTED)
    assert labels.tolist() == [1, -1, -1, 1]


def test_short_rows_stay_sparse(tmp_path):
    features, _ = read(write(tmp_path, "1 5:2 100:3\n0 7:1\n1\n"))
    assert isinstance(features, Rows)
    assert features.width == 100
    assert features.indices.tolist() == [[4, 99], [6, 0], [0, 0]]
    assert features.values.tolist() == [[2, 3], [1, 0], [0, 0]]
    assert features.indices.dtype == np.int32


def test_a_quarter_is_the_limit_of_sparse(tmp_path):
    sparse, _ = read(write(tmp_path, "1 4:1\n0 1:1\n"))
    assert isinstance(sparse, Rows)
    dense, _ = read(write(tmp_path, "1 4:1\n0 1:1 2:1\n"))
    assert isinstance(dense, np.ndarray)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one 1:1", "'one'"),
        ("nan 1:1", "two kinds of labels, not 0, 1, nan"),
        ("2 1:1", "two kinds of labels, not 0, 1, 2"),
        ("1 1", "more than 1 value"),
        ("1 1:2:3", "'2:3'"),
        ("1 1:nan", "example 2 is not finite"),
        ("1 1:1e39", "example 2 is not finite"),
        ("1 0:1", "Invalid index 0"),
        ("1 3:1 3:1", "sorted and unique"),
        ("1 2147483648:1", "too large"),
        ("1 9:1", "n_features was set to 8, but .* 9"),
        ("1 1:\xff", "xff"),
    ],
)
def test_what_a_problem_cannot_be_made_of_is_refused(tmp_path, line, message):
    path = write(tmp_path, f"1 1:1 # first\n\n0 1:2\n{line}\n".encode("latin-1"))
    with pytest.raises(UserError, match=f"data.*{message}"):
        load(f"libsvm(path={str(path)!r}, n_features=8)")


@pytest.mark.parametrize(
    ("text", "told"), [("\n# nothing\n", "no examples"), ("1 1:1\n1 1:2\n", "1")]
)
def test_files_with_nothing_to_learn(tmp_path, text, told):
    with pytest.raises(UserError, match=f"two kinds of labels, not {told}"):
        read(write(tmp_path, text))


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_packed_files_that_are_cut_off_or_damaged(tmp_path, suffix):
    rows = [f"{i % 2} 1:{i}" for i in range(40_000)]
    path = write(tmp_path, "\n".join(rows), f"data{suffix}")
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 0xFF
    for damaged in (content[: len(content) // 2], bytes(changed), SMALL.encode()):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is not whole LIBSVM text"):
            read(path)


def test_files_that_are_not_there_and_bad_arguments(tmp_path):
    with pytest.raises(UserError, match="nothing.gz: no such file. Sets to fetch"):
        read(tmp_path / "nothing.gz")
    with pytest.raises(ValueError, match="n_features is .* at least 1 or None, not 0"):
        read(write(tmp_path, SMALL), n_features=0)


NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = st.lists(
    st.dictionaries(st.integers(1, 30), NUMBERS, max_size=8), min_size=2, max_size=12
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ROWS)
def test_what_was_written_is_read(tmp_path, rows):
    lines, expected = [], np.zeros((len(rows), 30), np.float32)
    for i, row in enumerate(rows):
        pairs = sorted(row.items())
        expected[i, [j - 1 for j, _ in pairs]] = [v for _, v in pairs]
        lines.append(" ".join([str(i % 2), *(f"{j}:{v!r}" for j, v in pairs)]))
    path = write(tmp_path, "\n".join(lines) + "\n")
    features, labels = read(path, n_features=30)
    np.testing.assert_array_equal(whole(features), expected)
    assert labels.tolist() == [2 * (i % 2) - 1 for i in range(len(rows))]

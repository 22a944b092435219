"""The reader of LIBSVM text: what files say, whatever the blocks, and what is wrong."""

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcomp.convex.problems import LibsvmError, Rows, _mistake, read

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
        "# made by hand\n" + SMALL,
        SMALL.replace("\n", " # note 5:5\n"),
        SMALL.replace("\n", "\r\n"),
        SMALL.replace("\n", " \n"),
        SMALL.replace("\n", "\n\n   \n"),
        SMALL.replace(" ", "\t"),
        SMALL.replace(" ", "     "),
        "  " + SMALL,
        "\n\n#\n" + SMALL,
        SMALL.rstrip("\n"),
        SMALL.replace("+1 ", "1.0 ").replace("0.5", ".5").replace("1:7", "01:7."),
    ],
)
def test_spacing_comments_and_spellings_do_not_matter(tmp_path, text):
    features, labels = read(write(tmp_path, text))
    np.testing.assert_allclose(whole(features), EXPECTED)
    assert labels.tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize(
    "kinds", [("0", "1"), ("1", "2"), ("-1", "+1"), ("2", "4"), ("-1.0", "1e0")]
)
def test_the_smaller_of_two_labels_is_negative(tmp_path, kinds):
    low, high = kinds
    path = write(tmp_path, f"{high} 1:1\n{low} 1:1\n{low}\n")
    assert read(path).labels.tolist() == [1, -1, -1]


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


def test_files_may_hide_the_last_features(tmp_path):
    path = write(tmp_path, SMALL)
    features, _ = read(path, n_features=50)
    assert isinstance(features, Rows)
    assert features.width == 50
    with pytest.raises(LibsvmError, match="data:1: '3:-2e-1' after 1: .*at most 2"):
        read(path, n_features=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one 1:1", "'one' is not a label"),
        ("1,2 1:1", "'1,2' is not a label"),
        ("nan 1:1", "'nan' is not a label"),
        ("1:1 2:1", "'1:1' is not a label"),
        ("1 1", "'1' is not index:value"),
        ("1 1:", "'1:' is not index:value"),
        ("1 :1", "':1' is not index:value"),
        ("1 1:2:3", "'1:2:3' is not index:value"),
        ("1 1:2 3 4:5", "'3' is not index:value"),
        ("1 2:3:4 5", "'2:3:4' is not index:value"),
        ("1 qid:4 1:1", "'qid:4' is not index:value"),
        ("1 1.0:4", "'1.0:4' is not index:value"),
        ("1 +1:4", "'.1:4' is not index:value"),
        ("1 -1:4", "'-1:4' is not index:value"),
        ("1 1:1_0", "'1:1_0' is not index:value"),
        ("1 1:0x10", "'1:0x10' is not index:value"),
        ("1 1:nan", "'1:nan' is not .* finite"),
        ("1 1:-inf", "'1:-inf' is not .* finite"),
        ("1 1:1e39", "'1:1e39' is not .* finite float32"),
        ("1 1:1e999", "'1:1e999' is not .* finite float32"),
        ("1 0:1", "'0:1': indices count from 1"),
        ("1 3:1 3:1", "'3:1' after 3: indices .* ascend"),
        ("1 3:1 2:1", "'2:1' after 3: indices .* ascend"),
        ("1 2147483648:1", "at most 2147483647"),
        ("1 " + "9" * 99 + ":1", "'9{40}...: indices|'9{40}...'"),
        ("1 1:\x00", "is not index:value"),
        ("1 1:\xff", "is not index:value"),
        ("1 1:2\x0c3", "'3' is not index:value"),
    ],
)
def test_mistakes_show_file_line_and_text(tmp_path, line, message):
    text = f"1 1:1 # first\n\n0 1:2\n{line}\n1 1:1\n".encode("latin-1")
    with pytest.raises(LibsvmError, match=message) as error:
        read(write(tmp_path, text))
    assert f"{tmp_path / 'data'}:4: " in str(error.value)


def test_a_third_kind_of_label_is_shown(tmp_path):
    text = "1 1:1\n#\n3 1:1\n\n1 2:1\n2 1:1\n3 1:1\n"
    message = "data:6: label 2 is a third kind, after 1 and 3"
    with pytest.raises(LibsvmError, match=message):
        read(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data:1: no examples"),
        ("\n# nothing\n", "data:3: no examples"),
        ("1 1:1\n1 1:2\n", "all labels are 1; there must be two kinds"),
    ],
)
def test_files_with_nothing_to_learn(tmp_path, text, message):
    with pytest.raises(LibsvmError, match=message):
        read(write(tmp_path, text))


def packed(suffix: str) -> tuple[bytes, str]:
    rng = np.random.default_rng(0)
    rows = [f"{i % 2} 1:{v!r}" for i, v in enumerate(rng.normal(size=40_000).tolist())]
    text = "\n".join(rows).encode()
    return (gzip if suffix == ".gz" else bz2).compress(text), f"data{suffix}"


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_packed_files_that_are_cut_off_or_damaged(tmp_path, suffix):
    content, name = packed(suffix)
    path = tmp_path / name
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LibsvmError, match="file is cut off here") as error:
        read(path)
    line = int(str(error.value).removeprefix(f"{path}:").split(":")[0])
    assert (line > 10_000) == (suffix == ".gz")  # bz2 unpacks 900 kB or nothing
    assert line < 40_000
    changed = bytearray(content)
    changed[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(changed))
    with pytest.raises(LibsvmError, match=rf"{name}:\d+: "):
        read(path)
    path.write_bytes(SMALL.encode())
    with pytest.raises(LibsvmError, match="file is damaged here"):
        read(path)


def test_a_file_without_ends_of_lines_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxcomp.convex.problems._LONGEST_LINE", 1000)
    with pytest.raises(LibsvmError, match="data:3: no end of line within"):
        read(write(tmp_path, "1 1:1\n0 1:1\n" + "x" * 10_000))


def test_files_that_are_not_there_and_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        read(tmp_path / "nothing.gz")
    with pytest.raises(
        ValueError, match="n_features is .* of at least 1 or None, not 0"
    ):
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


PIECES = ["1", "-1", "+1", "1e0", "0x1", "nan", "1:2", "2:.5", "3:-1e5", "4:", ":1"]
PIECES += ["1:1:1", "1.0:2", " ", " ", " ", "  ", "\n", "\n", "\t", "\r\n", "#", "\x0c"]
PIECES += ["-", ".", "e", "1:-", "2:--1", "2:1e", "2:.e1", "2:1-2", "2:1.5.5", "3:1e-"]
LIKELY = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
ORDERLY = st.lists(st.sampled_from(PIECES[:7]), min_size=1, max_size=4).map(" ".join)
TEXTS = LIKELY | st.lists(ORDERLY, max_size=3).map("\n".join)


@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(TEXTS)
def test_a_file_is_read_if_and_only_if_no_line_has_a_mistake(tmp_path, text):
    """The reader of whole files and the one that names mistakes know one grammar."""
    lines = ["1 1:1", "0 1:1", *text.split("\n")]
    contents = [line.split("#")[0].encode() for line in lines]
    places = [i for i, content in enumerate(contents, 1) if _mistake(content, 9)]
    path = write(tmp_path, "\n".join(lines).encode())
    try:
        read(path, n_features=9)
    except LibsvmError as error:
        line, reason = str(error).removeprefix(f"{path}:").split(":", 1)
        assert places[:1] == [int(line)] or (not places and "third kind" in reason)
    else:
        assert not places

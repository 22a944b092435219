"""Trees in files: what is written is read, and nothing in them runs."""

import json
import pickle

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxcomp import UserError, study

TREE = {
    "block": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "file": np.ones(2, np.float32),  # also the name of an argument of np.savez
}


def safetensors(path, header, body=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_a_tree_comes_back(tmp_path):
    file = tmp_path / "gradient.npz"
    study.save(file, TREE)
    jax.tree.map(np.testing.assert_array_equal, study.load(file), TREE)


def test_narrow_floats_are_written_in_float32(tmp_path):
    file = tmp_path / "gradient.npz"
    study.save(file, {"w": jax.numpy.ones(3, jax.numpy.bfloat16)})
    assert study.load(file)["w"].dtype == np.float32


def test_an_array_alone_is_read(tmp_path):
    np.save(tmp_path / "w.npy", np.ones(3))
    assert study.load(tmp_path / "w.npy").shape == (3,)


def test_safetensors_are_read(tmp_path):
    values = np.array([1, -2.5], np.float32)
    narrow = np.array([[3.0]], ml_dtypes.bfloat16)
    header = {
        "__metadata__": {"format": "pt"},
        "layer.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "layer.bias": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [8, 10]},
    }
    body = values.tobytes() + narrow.tobytes()
    tree = study.load(safetensors(tmp_path / "g.safetensors", header, body))
    np.testing.assert_array_equal(tree["layer"]["weight"], values)
    assert float(tree["layer"]["bias"][0, 0]) == 3


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}, "dtype I64"),
        ({"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}, "cut off"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, "bytes of its shape"),
        ({"shape": [1]}, "cannot read"),
    ],
)
def test_a_wrong_entry_is_refused(entry, says, tmp_path):
    file = safetensors(tmp_path / "g.safetensors", {"w": entry}, bytes(8))
    with pytest.raises(UserError, match=says):
        study.load(file)


def test_a_cut_off_file_is_refused(tmp_path):
    file = tmp_path / "g.safetensors"
    file.write_bytes((100).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="it is cut off"):
        study.load(file)


def test_pickled_objects_are_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot read"):
        study.load(tmp_path / "w.npy")
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(TREE))
    with pytest.raises(UserError, match=r"ends in '.pkl'. Valid: .npz, .npy"):
        study.load(tmp_path / "w.pkl")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"w": np.arange(3)}, "dtype int64, which is no float"),
        ({"a": np.ones(2), "a/b": np.ones(2)}, "both an array and a group"),
        ({"a/b": np.ones(2), "a": np.ones(2)}, "both an array and a group"),
        ({}, "holds no arrays"),
    ],
)
def test_what_is_no_tree_of_floats_is_refused(arrays, says, tmp_path):
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(UserError, match=says):
        study.load(tmp_path / "g.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="none.npz"):
        study.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("name", "tree", "says"),
    [("g.npy", TREE, "end in .npz"), ("g.npz", np.ones(3), "leaves have names")],
)
def test_what_cannot_be_written_is_refused(name, tree, says, tmp_path):
    with pytest.raises(UserError, match=says):
        study.save(tmp_path / name, tree)

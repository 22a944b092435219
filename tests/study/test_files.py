"""Trees in files: what is written is read, and nothing in them runs."""

import pickle

import jax
import numpy as np
import pytest

from jaxcomp import UserError, study

TREE = {
    "block": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "narrow": jax.numpy.ones(2, jax.numpy.bfloat16),  # written in float32
}


def test_a_tree_comes_back(tmp_path):
    file = tmp_path / "gradient.npz"
    study.save(file, TREE)
    found = study.load(file)
    jax.tree.map(np.testing.assert_array_equal, found, TREE)
    assert found["narrow"].dtype == np.float32
    np.save(tmp_path / "w.npy", np.ones(3))  # an array alone
    assert study.load(tmp_path / "w.npy").shape == (3,)


def test_what_could_run_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot read"):
        study.load(tmp_path / "w.npy")
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(TREE))
    with pytest.raises(UserError, match=r"ends in '.pkl'. Valid: .npz, .npy"):
        study.load(tmp_path / "w.pkl")
    with pytest.raises(UserError, match="none.npz"):
        study.load(tmp_path / "none.npz")


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


@pytest.mark.parametrize(
    ("name", "tree", "says"),
    [
        ("g.npy", TREE, "end in .npz"),
        ("g.npz", np.ones(3), "leaves have names"),
        ("g.npz", {"file": np.ones(3)}, "none is 'file'"),
    ],
)
def test_what_cannot_be_written_is_refused(name, tree, says, tmp_path):
    with pytest.raises(UserError, match=says):
        study.save(tmp_path / name, tree)

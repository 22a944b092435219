"""Methods in one line, and the trees that people name."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import UserError
from jaxcomp.cli.prediction import read_tree
from jaxcomp.wire import shapes
from jaxcomp.wire.compatibility import make_method
from jaxcomp.wire.cost import Link
from jaxcomp.wire.predict import USUAL, predict

TREE = {"b": (1000,), "w": (200, 300)}
LINK = Link(bandwidth=1e6, latency=1e-3)


def told(*seconds):
    """Local times that somebody knows, in the order of the methods."""
    return lambda every, spec: list(seconds)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exact", "exact"),
        ("sign", "error_feedback: gather(whole_tree: sign)"),
        ("none: sign", "gather(whole_tree: sign)"),
        ("per_leaf: sign", "error_feedback: gather(sign)"),
        (
            "cast(bfloat16)",
            "error_feedback: gather(whole_tree: cast(dtype='bfloat16'))",
        ),
        ("power_sgd(rank=2)", "error_feedback: power_sgd(rank=2)"),
        ("svd(rank=1)", "error_feedback: gather(svd(rank=1))"),
        ("dgc: sparse_reduce: top_k", "dgc: sparse_reduce(whole_tree: "),
        ("qsgd(levels=7)", "gather(whole_tree: qsgd(levels=7, bucket=512))"),
        ("two_phase: qsgd(levels=7, norm='max')", "two_phase(whole_tree: qsgd("),
    ],
)
def test_a_method_is_one_line(text, name):
    spec = {"w": jax.ShapeDtypeStruct((80, 90), jnp.float32)}
    assert make_method(text, spec).name.startswith(name)


def test_the_usual_methods_are_valid_and_begin_with_the_baseline():
    spec = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in TREE.items()}
    names = [make_method(text, spec).name for text in USUAL]
    assert names[0] == "exact"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sing", "no method is called 'sing'. Did you mean 'sign'"),
        (
            "tow_phase: sign",
            "before a colon, not 'tow_phase'. Did you mean 'two_phase'",
        ),
        ("dgc: ef21: sign", "names two of a kind: dgc and ef21"),
        ("error_feedback: qsgd(levels=7)", None),
        ("", "not a spec"),
    ],
)
def test_wrong_methods_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        predict(TREE, [text], link=LINK, workers=4, compute=1, local=told(0, 0))


def test_arrays_and_names_are_trees():
    arrays = {"w": np.zeros((4, 4), np.float32)}
    found = predict(arrays, [], link=LINK, compute=1, local=told(0))
    assert found.elements == 16
    named = predict("resnet50", [], link=LINK, compute=1, local=told(0))
    assert (named.elements, named.tensors) == (25_557_032, 161)


def test_published_models_have_their_published_size():
    counts = {
        name: shapes.elements(shapes.named_tree(name)) for name in ("vgg16", "gpt2")
    }
    assert counts == {"vgg16": 138_357_544, "gpt2": 124_439_808}
    assert len(shapes.named_tree("gpt2")) == 148
    assert len(shapes.named_tree("vgg16", 0.1)) == 32


def test_trees_of_the_command_line(tmp_path):
    assert read_tree("[(3, 4), ()]") == [(3, 4), ()]
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"w": [3, 4]}))
    assert read_tree(str(file)) == {"w": (3, 4)}
    file.write_text("[[3], [4, 5]]")
    assert read_tree(str(file)) == [(3,), (4, 5)]
    params = jax.tree.leaves(read_tree("tiny"))
    assert all(leaf.dtype == jnp.float32 for leaf in params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet5", "unknown model 'resnet5'. Did you mean 'resnet"),
        ("[(3, x)]", "no list of shapes"),
        ("[3]", "whole numbers, not 3"),
        ("[(-1,)]", "whole numbers"),
        ("nowhere.json", "nowhere.json: No such file"),
    ],
)
def test_wrong_trees_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        read_tree(text)

"""What single exchanges promise, against slow and obvious NumPy."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import SpecError, exchanges, make_exchange, make_mixer
from tests.exchanges.matrix import (
    FIRST,
    PAIRS,
    average,
    close,
    compiled,
    few_workers,
    mapped,
    steps_of,
)
from tests.exchanges.matrix import gradients as gradients_of_pairs
from tests.tiers import tiers
from tests.workers import gradients, take


def matrices(workers, seed, shape=(12, 7)):
    """Two matrices and a vector; the matrices share directions between workers."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(1, *shape))
    own = rng.normal(size=(workers, *shape))
    draws = {"a": common + 0.3 * own, "b": own, "c": rng.normal(size=(workers, 5))}
    return {name: jnp.asarray(x, jnp.float32) for name, x in draws.items()}


@functools.cache
def made(exchange, compressor):
    """One object for each method, so that tests share its programs."""
    return exchanges.make(exchange, compressor)


# --- Same numbers under every mapper --------------------------------------------------


# --- PowerSGD -------------------------------------------------------------------------


def power_sgd_reference(trees, starts, rank, feedback):
    """Algorithm 1 and 2 of the paper; a loop over workers, tensors and columns."""
    workers = len(trees[0]["a"])
    right = {name: np.array(q, np.float64) for name, q in starts.items()}
    errors = {name: np.zeros(trees[0][name].shape) for name in right}
    results = []
    for tree in trees:
        mean = {"c": np.asarray(tree["c"], np.float64).mean(axis=0)}
        for name, q in right.items():
            given = np.asarray(tree[name], np.float64) + errors[name]
            p = np.mean([given[i] @ q for i in range(workers)], axis=0)
            for c in range(rank):  # Gram-Schmidt
                for other in range(c):
                    p[:, c] -= (p[:, other] @ p[:, c]) * p[:, other]
                p[:, c] /= np.linalg.norm(p[:, c])
            q = np.mean([given[i].T @ p for i in range(workers)], axis=0)
            mean[name], right[name] = p @ q.T, q
            if feedback:
                # What each worker itself would have decoded.
                errors[name] = given - np.stack(
                    [p @ (p.T @ given[i]) for i in range(workers)]
                )
        results.append(mean)
    return results


@pytest.mark.parametrize(
    ("rank", "memory"),
    tiers(
        itertools.product([1, 2, 3], ["none", "error_feedback"]),
        {(1, "none"), (3, "error_feedback")}.__contains__,
    ),
)
def test_power_sgd_is_the_published_algorithm(rank, memory):
    exchange = make_exchange(f"power_sgd(rank={rank}, min_rate=1)", memory=memory)
    trees = [matrices(3, seed) for seed in range(6)]
    one = jax.tree.map(lambda x: x[0], trees[0])
    state = exchange.init(one)
    factors = (state if memory == "none" else state.exchange).right
    starts = dict(zip("ab", factors, strict=True))
    expected = power_sgd_reference(trees, starts, rank, memory != "none")
    for step, mean in zip(take(exchange, *trees), expected, strict=True):
        close(step.shared, {k: v.astype(np.float32) for k, v in mean.items()}, 2e-4)


def test_power_sgd_reports_the_error_that_it_makes():
    tree = matrices(3, 0)
    [step] = take(made("power_sgd(rank=2, min_rate=1)", "none"), tree)
    given, sent = (
        np.concatenate(
            [np.asarray(x).reshape(3, -1) for x in jax.tree.leaves(t)], axis=1
        )
        for t in (tree, step.own[0])
    )
    expected = np.sum((given - sent) ** 2, axis=1) / np.sum(given**2, axis=1)
    np.testing.assert_allclose(step.own[1].gradient_error, expected, rtol=1e-4)


def test_power_sgd_leaves_small_tensors_as_they_are():
    exchange = exchanges.make("power_sgd(rank=2, min_rate=2.0)")
    spec = {
        "conv": jax.ShapeDtypeStruct((3, 3, 16, 32), jnp.float32),  # 144 x 32
        "flat": jax.ShapeDtypeStruct((4000,), jnp.float32),
        "small": jax.ShapeDtypeStruct((6, 6), jnp.float32),  # 24 numbers x 2 > 36
    }
    assert exchange.contraction(spec) == [0, 1, 1]
    assert [q.shape for q in exchange.init(spec).right] == [(32, 2)]


# --- Two phases -----------------------------------------------------------------------


def test_two_phase_top_k_in_numpy():
    """Each part's largest, added by its owner, and the largest of the sum."""
    workers, size, keep = 2, 40, 0.2
    x = np.random.default_rng(0).normal(size=(workers, size)).astype(np.float32)
    exchange = make_exchange("two_phase", f"top_k(keep={keep})", "none")
    [step] = take(exchange, {"x": jnp.asarray(x)})

    def largest(row):
        kept = np.zeros_like(row)
        places = np.argsort(-np.abs(row))[: round(keep * row.size)]
        kept[places] = row[places]
        return kept

    expected, sent = [], np.zeros_like(x)
    for owner in range(workers):
        part = slice(owner * size // 2, (owner + 1) * size // 2)
        first = np.stack([largest(x[i, part]) for i in range(workers)])
        mean = largest(first.sum(axis=0)) / workers
        sent[:, part] = first
        sent[owner, part] += workers * mean - first.sum(axis=0)
        expected.append(mean)
    np.testing.assert_allclose(step.shared["x"], np.concatenate(expected), rtol=1e-6)
    np.testing.assert_allclose(step.own[0]["x"], sent, rtol=1e-5, atol=1e-6)


def test_two_phase_takes_no_state():
    exchange = make_exchange("two_phase", "rotating_slice(keep=0.5)", "none")
    with pytest.raises(ValueError, match="without state"):
        exchange.init({"x": jnp.ones(8)})


# --- Sparse reduce --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compressor", "workers"),
    tiers(
        itertools.product(["top_k(keep=0.05)", "random_k(keep=0.05)"], [1, 2, 5]),
        lambda case: case == ("top_k(keep=0.05)", 2),
    ),
)
def test_sparse_reduce_with_room_for_all_is_gather(compressor, workers):
    """Chosen places that all find room: the very mean that gather gives."""
    tree = {name: gradients(workers)[name] for name in ("deep", "kernel")}
    roomy = make_exchange(f"sparse_reduce(slack={8 * workers})", compressor, "none")
    [step] = take(roomy, tree)
    close(step.shared, average(step.own[0]))
    kept = sum(np.count_nonzero(leaf[0]) for leaf in jax.tree.leaves(step.own[0]))
    assert kept == sum(
        max(1, round(0.05 * leaf[0].size)) for leaf in jax.tree.leaves(tree)
    )
    if compressor.startswith("top_k"):  # random_k has other keys there
        [expected] = take(make_exchange("gather", compressor, "none"), tree)
        close(step.shared, expected.shared)


@pytest.mark.parametrize(
    ("shape", "workers"),
    tiers(
        itertools.product([(3, 3, 32, 64), (3, 3, 32, 128), (1024, 256)], [2, 4, 8]),
        ((3, 3, 32, 64), 4).__eq__,
    ),
)
def test_a_hot_channel_is_shared_by_all_owners(shape, workers):
    """Its stride is a power of two, as the number of owners is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(workers, *shape))
    x[..., 5] += 100 * np.sign(x[..., 5])
    x[1:, ..., 5] = x[0, ..., 5]
    compressor = f"top_k(keep={1.28 / shape[-1]})"
    errors = [
        take(made(exchange, compressor), {"x": jnp.asarray(x, jnp.float32)})[0]
        .own[1]
        .gradient_error
        for exchange in ("sparse_reduce", "gather")
    ]
    assert errors[0].mean() < 1.2 * errors[1].mean()


def test_sparse_reduce_tells_what_found_no_room():
    """One block of 16 elements, of which the owner has room for 4."""
    x = jnp.zeros((4, 1024)).at[:, :16].set(1)
    exchange = made("sparse_reduce(slack=1.0)", "top_k(keep=0.015625)")
    [step] = take(exchange, {"x": x})
    assert exchange.figures == ("no_room",)
    assert step.own[1].extra["no_room"].tolist() == [12] * 4


def test_a_bound_of_sparse_reduce_needs_one_of_its_values():
    spec = {"x": jax.ShapeDtypeStruct((4096,), jnp.float32)}
    bounds = {
        values: exchanges.make(
            f"sparse_reduce(values={values})", "top_k(keep=0.1)"
        ).contraction(spec)
        for values in ("none", "cast", "terngrad")
    }
    assert bounds == {"none": [0], "cast": [0], "terngrad": [None]}


@pytest.mark.parametrize(
    ("compressor", "reason"),
    [("sign", "more than half.*two_phase"), ("none", "nothing to choose.*exact")],
)
def test_sparse_reduce_wants_a_sparsifier(compressor, reason):
    with pytest.raises(ValueError, match=reason):
        make_exchange("sparse_reduce", compressor).init({"x": jnp.ones(64)})


# --- Votes and shared scales ----------------------------------------------------------


def test_the_majority_wins_and_ties_move_nothing():
    """Zeros abstain; in a third of the places nobody votes but one worker."""
    x = np.random.default_rng(0).normal(size=(4, 4000)).astype(np.float32)
    x[1:, ::3] = 0
    x[:, ::100] = 0
    [step] = take(exchanges.make("majority_vote"), {"x": jnp.asarray(x)})
    np.testing.assert_array_equal(step.shared["x"], np.sign(np.sign(x).sum(axis=0)))
    np.testing.assert_array_equal(step.own[0]["x"], np.sign(x))


@pytest.mark.parametrize(
    "compressor",
    ["random_k(keep=0.1)", "block_top_k(keep=1.0, per_block=3) | random_k(keep=0.1)"],
)
def test_the_places_of_an_answer_hide_no_nan(compressor):
    """Owners answer with other places than those that the messages held."""
    built = make_exchange("two_phase", compressor, "none")
    tree = gradients_of_pairs(3, 0)
    tree = jax.tree.map(lambda x: x.at[1].set(jnp.nan), tree)
    average_of = jax.vmap(lambda key: mapped(built, 3, ())((), tree, key).mean)
    means = jax.jit(average_of)(jax.random.split(jax.random.key(0), 32))
    for mean in jax.tree.leaves(means):
        assert np.isnan(mean).reshape(32, -1).any(axis=1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("exchange", "compressor"),
    # What random_k does not draw, nobody sees.
    tiers(
        [case for case in PAIRS if "random_k(keep=0.1)" not in case],
        FIRST.items().__contains__,
    ),
)
def test_what_is_not_finite_is_seen_by_all(exchange, compressor, bad):
    """One element of one tensor of one worker; programs of test_guarantees.py."""
    workers = few_workers(exchange)
    tree = gradients_of_pairs(workers, 0)
    tree["kernel"] = tree["kernel"].at[1, 2, 3].set(bad)
    [step] = steps_of(
        compiled(exchange, compressor, workers), workers, 1, lambda i: tree
    )
    assert not all(np.isfinite(m).all() for m in jax.tree.leaves(step.mean))


def test_shared_scale_is_unbiased():
    x = gradients(3)["deep"]
    exchange = exchanges.make("shared_scale(levels=3, bucket=16)")

    def mean(x, key):
        return exchange.average({"x": x}, (), key).mean["x"]

    of_all = jax.vmap(mean, (0, None), out_axes=None, axis_name="workers")
    keys = jax.random.split(jax.random.key(1), 4000)
    draws = np.asarray(jax.jit(lambda x: jax.lax.map(lambda k: of_all(x, k), keys))(x))
    error = draws.mean(axis=0) - np.asarray(x).mean(axis=0)
    noise = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(error) < 6 * noise + 1e-5)


def test_shared_scale_has_one_scale_for_all_workers():
    x = jnp.asarray([[1.0, 0.0, 0.0], [0.0, -4.0, 2.0]])
    steps = take(exchanges.make("shared_scale"), *[{"x": x}] * 5)
    values = np.unique(np.stack([s.own[0]["x"] for s in steps]))
    assert set(values) <= {-4.0, 0.0, 4.0}
    clipped = take(exchanges.make("shared_scale(clip=1.0)"), {"x": x})[0]
    assert np.abs(clipped.own[0]["x"]).max() == pytest.approx(np.sqrt(20 / 3), rel=1e-5)


def test_shared_scale_refuses_sums_that_save_nothing():
    exchange = exchanges.make("shared_scale(levels=127)")
    with pytest.raises(ValueError, match="127 levels of 300 workers"):
        take(exchange, {"x": jnp.ones((300, 4))})


# --- Compressors that are of no use ---------------------------------------------------

OWN_WAYS = ["exact", "majority_vote", "power_sgd", "shared_scale"]
# Takes it for the tensors that may be compressed, by its ladder.
STANDS_FOR_THE_LADDER = "budget"


@pytest.mark.parametrize("name", exchanges.REGISTRY)
def test_an_exchange_says_whether_it_uses_the_compressor(name):
    """What is used stands in the name."""
    spec = "budget(bits_per_step=6000)" if name == "budget" else name
    built = exchanges.make(spec, "random_k(keep=0.1)")
    uses = "random_k(keep=0.1" in built.name or name == STANDS_FOR_THE_LADDER
    assert built.ignores_compressor == (not uses) == (name in OWN_WAYS)


@pytest.mark.parametrize(
    "exchange", [*OWN_WAYS, "hierarchical(outer=exact)", exchanges.make("gather")]
)
def test_a_compressor_of_no_use_is_refused(exchange):
    assert make_exchange(exchange, memory="none")
    assert make_exchange(exchange, "none", memory="none")
    with pytest.raises(SpecError, match="has no use for the compressor 'sign'"):
        make_exchange(exchange, "sign", memory="none")
    with pytest.raises(SpecError, match="has no use for a policy"):
        make_exchange(exchange, memory="none", policy=[("*", "sign")])


# --- Hosts, simulation, policies ------------------------------------------------------


def test_hierarchical_compresses_the_mean_of_a_host():
    """With parts as vectors: the parts' largest of each host's mean, averaged."""
    x = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    exchange = make_exchange("hierarchical(per_host=2)", "top_k(keep=0.1)", "none")
    [step] = take(exchange, {"x": jnp.asarray(x)})
    expected = np.zeros(40)
    for host in (x[:2].mean(axis=0), x[2:].mean(axis=0)):
        for part in (slice(0, 20), slice(20, 40)):
            places = np.argsort(-np.abs(host[part]))[:2]
            expected[part][places] += host[part][places] / 2
    np.testing.assert_allclose(step.shared["x"], expected, rtol=1e-5, atol=1e-7)


def test_hierarchical_reports_all_figures_whichever_tensors_there_are():
    """Otherwise a loop would start with other reports than its steps return."""
    exchange = make_exchange(
        "hierarchical(per_host=1)", "threshold", scope="only_large"
    )
    link = jaxcomp.distributed(exchange, seed=0)
    tree = gradients(2)

    def both(tree):
        state = link.init(tree)
        return state, link.update(tree, state)[1]

    before, after = jax.eval_shape(jax.vmap(both, axis_name="workers"), tree)
    assert jax.tree.structure(before) == jax.tree.structure(after)


def test_hierarchical_names_what_does_not_fit():
    with pytest.raises(ValueError, match="3 workers are not a multiple of per_host=2"):
        take(make_exchange("hierarchical(per_host=2)", "sign"), gradients(3))
    with pytest.raises(SpecError, match="majority_vote"):
        make_exchange("hierarchical(outer=majority_vote)", "sign")
    with pytest.raises(SpecError, match="gather"):
        make_exchange("hierarchical(outer=gatherr)", "sign")
    with pytest.raises(SpecError, match="into hosts once"):
        make_exchange("hierarchical(outer=hierarchical)", "sign")
    with pytest.raises(SpecError, match=r"vectors, and 'power_sgd\(.*matrices: take"):
        make_exchange("hierarchical(outer=power_sgd)")


@pytest.mark.parametrize(
    ("inner", "word"),
    [
        ("majority_vote", "lawful"),
        ("two_phase(server_feedback=True)", "hold nothing back"),
        ("power_sgd(rank=64)", "send everything as it is"),
        ("shared_scale", "send everything as it is"),
    ],
)
def test_hierarchical_loses_nothing_inside_a_host(inner, word):
    name = re.escape(exchanges.make(inner).name)
    with pytest.raises(SpecError, match=f"inner exchange.*{word}.*{name}"):
        make_exchange(f"hierarchical(inner={inner})", "sign")
    assert make_exchange("hierarchical(inner=gather)", "sign").lawful


def test_simulated_has_the_numbers_of_gather_and_says_what_it_is():
    tree = gradients(3)
    simulated = make_exchange("simulated", "qsgd(levels=7)", "none")
    [a] = take(simulated, tree)
    [b] = take(make_exchange("gather", "qsgd(levels=7)", "none"), tree)
    close(a.shared, b.shared)
    assert simulated.simulated
    assert "simulated" in simulated.name
    assert (a.own[1].extra["would_send_bytes"] > 0).all()


def test_a_policy_chooses_by_path_size_and_rank():
    tree = {
        "Conv_0": {"kernel": jnp.ones((2, 3, 3, 4, 5))},
        "Dense_0": {"bias": jnp.ones((2, 6)), "kernel": jnp.ones((2, 40, 6))},
        "Norm": {"scale": jnp.ones((2, 9))},
    }
    tree = jax.tree.map(
        lambda x: x * jnp.arange(1.0, x[0].size + 1).reshape(1, *x.shape[1:]), tree
    )
    rules = [("*/bias", "none"), ("Dense*", "sign"), ("size<10", "top_k(keep=0.2)")]
    exchange = make_exchange("gather", "top_k(keep=0.05)", "none", policy=rules)
    [step] = take(exchange, tree)
    sent = jax.tree.map(lambda x: x[0], step.own[0])
    one = jax.tree.map(lambda x: np.asarray(x[0]), tree)
    np.testing.assert_array_equal(sent["Dense_0"]["bias"], one["Dense_0"]["bias"])
    assert len(np.unique(sent["Dense_0"]["kernel"])) == 1
    assert np.count_nonzero(sent["Norm"]["scale"]) == 2
    assert np.count_nonzero(sent["Conv_0"]["kernel"]) == 9
    assert [delta == 1 for delta in exchange.contraction(one)] == [0, 1, 0, 0]


def test_a_policy_sends_vectors_dense_by_default():
    exchange = make_exchange("gather", "sign", scope="policy")
    spec = {"b": jnp.ones(9), "k": jnp.ones((3, 3))}
    assert exchange.contraction(spec) == [1, pytest.approx(1 / 9)]


@pytest.mark.parametrize(
    ("rules", "word"),
    [
        ([("sise<9", "none")], "size"),
        ([("size<<9", "none")], "pattern"),
        ([("*", "topk")], "top_k"),
        ([("*",)], "pair"),
    ],
)
def test_a_bad_rule_is_named(rules, word):
    with pytest.raises((SpecError, ValueError), match=word):
        make_exchange("gather", "sign", policy=rules)


def test_a_path_that_fits_no_tensor_of_the_model_is_refused():
    """Where the whole model is known; a part of one may have no such tensor."""
    rules = [("*/bias", "none"), ("size>9", "none")]
    wrong = [*rules, ("ndim<2&!*/biass", "none")]
    tree = {"a": {"bias": jnp.ones(3)}, "w": jnp.ones((2, 3))}
    message = (
        r"'\*/biass' of the policy fits no tensor. Did you mean 'a/bias'\? Valid: a"
    )

    def links(policy, axis="workers"):
        of_policy = functools.partial(
            make_exchange, compressor="sign", policy=policy, axis=axis
        )
        exchange = of_policy()
        ring = make_mixer("choco", "ring", 2, compressor="sign", policy=policy)
        rounds = make_mixer(
            "local_sgd", exchange="gather", compressor="sign", policy=policy
        )
        return exchange, [
            jaxcomp.distributed(of_policy(overlap=2)),
            jaxcomp.pmean(exchange),
            *map(jaxcomp.mixing, (ring, rounds)),
        ]

    exchange, wrong_links = links(wrong, "data")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    for link in [*wrong_links, jaxcomp.data_parallel(exchange, mesh)]:
        with pytest.raises(SpecError, match=message):
            link.init(tree)
    for link in links(rules)[1]:
        link.init(tree)
    part = {"a": {"bias": optax.MaskedNode()}, "w": jnp.ones((2, 3))}
    jaxcomp.distributed(exchange, allow_masked=True).init(part)


def test_a_policy_is_a_scope():
    with pytest.raises(SpecError, match="whole_tree"):
        make_exchange("gather", "sign", scope="whole_tree", policy=[("*", "sign")])

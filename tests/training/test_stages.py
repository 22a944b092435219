"""What is sent may change during a run: warm-up of `keep`, dense steps, flushes."""

from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from jaxcomp import SpecError, make_mixer
from jaxcomp.core.errors import UserError
from jaxcomp.mixers.local import REGISTRY
from jaxcomp.training.console import headline
from jaxcomp.training.programs import run_traffic
from jaxcomp.training.schedules import Horizon
from jaxcomp.training.stages import Stage, exponential, make_stages
from tests.training.small import (
    built,
    segments_of,
    small_config,
)

RUN = segments_of(Horizon(steps_per_epoch=10, batch_size=32))


def stages(**settings):
    usual = {"compressor": "top_k(keep=0.01)", "keep_warmup": ""}
    dense = {"dense_for": "", "flush_every": ""}
    config: Any = ConfigDict({**usual, **dense, **settings})
    return make_stages(config, Stage(config.compressor, dense=False), RUN)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mixer": "local_sgd(h=2)"},
        {"scope": "per_leaf", "policy": (("*/bias", "sign"),)},
    ],
)
def test_one_setting_switches_the_compression_off_and_the_run_says_so(changes):
    config = small_config(exchange="exact", keep_warmup="listed", **changes)
    setup = built(config)
    assert "top_k" not in setup.method.name
    says = "a step alone" if "mixer" in changes else "what the exchange sends"
    assert str(setup.stages.at(0)) == says  # is compiled for
    assert {setup.stages.at(i) for i in (0, 20)} == {setup.stages.at(10)}
    assert "'top_k(keep=0.1)' is of no use to 'exact'" in headline(setup)
    assert "no use" not in headline(built(small_config()))


def test_the_exponential_warm_up_of_the_original():
    """.316, .100, .0316, .0100, .00316 and then .001: what its code does."""
    expected = [10 ** (-0.5 * (e + 1)) for e in range(5)]
    np.testing.assert_allclose(exponential(0.001, epochs=5), expected)
    found = stages(compressor="dgc_top_k(0.001)", keep_warmup="exponential(epochs=5)")
    for epoch, keep in enumerate(expected):
        sent = str(found.at(10 * epoch + 9).compressor)
        assert float(sent.removeprefix("dgc_top_k(keep=").strip(")")) == pytest.approx(
            keep
        )
    assert found.at(50) == found.at(999) == Stage("dgc_top_k(0.001)", dense=False)


def test_dense_first_epochs_come_from_a_list_of_ones():
    """The original's [1, 1, 1]: nothing is lost, and one program serves all of it."""
    found = stages(keep_warmup="listed(keeps=[1, 1, 0.1])")
    assert [found.at(s).dense for s in (0, 10, 20, 30)] == [True, True, False, False]
    assert found.at(0) == stages(dense_for="2 epochs").at(0)


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("name", REGISTRY)
def test_what_is_to_be_dense_is_so_in_the_next_round(name, fragments):
    """Of each part of the model, however rounds and intervals lie."""
    mixer = make_mixer(f"{name}(h=5, fragments={fragments})", exchange="gather")
    config: Any = ConfigDict({"dense_for": "7 steps", "flush_every": "22 steps"})
    config.keep_warmup = ""
    found = make_stages(config, Stage("sign", dense=False), RUN, mixer)
    silent = [s for s in range(200) if found.at(s).silent]
    assert silent == [s for s in range(200) if mixer.phase(s) == 0]
    assert not any(found.at(s).dense for s in silent)
    for part in range(1, fragments + 1):
        sends = [s for s in range(220) if mixer.phase(s) == part]
        after = [6, *range(21, 200, 22)]  # the last of the first steps, and flushes
        due = {next(s for s in sends if s >= end) for end in after}
        begun = {s for s in sends if s < 7}
        assert {s for s in sends[:-2] if found.at(s).dense} == due | begun


def test_a_stage_sends_what_it_says():
    """Dense ones no less than the model, in two halves; silent ones nothing."""
    config = small_config(
        mixer="local_sgd(h=4, fragments=2)", mapper="vmap", flush_every="20 steps"
    )
    whole, found = run_traffic(built(config))
    sent = {str(stage): traffic.wire for stage, traffic in found.items()}
    usual = "top_k(keep=0.1)"
    dense = [sent.pop(f"everything as it is (phase {i})") for i in (1, 2)]
    assert sum(dense) >= whole.dense
    assert sent.pop("a step alone") == 0
    assert sent.keys() == {f"{usual} (phase {i})" for i in (1, 2)}
    assert all(0 < x < min(dense) for x in sent.values())


GOSSIP = {
    "mixer": "choco",
    "topology": "ring",
    "exchange": "",
    "memory": "none",
    "mapper": "vmap",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (GOSSIP | {"keep_warmup": "listed(keeps=[1, 0.25])"}, "fractions below 1"),
        (
            GOSSIP | {"mixer": "choco_overlapped", "keep_warmup": "listed"},
            "listed' cannot be: the state of 'choco_overlapped.*as large as a message",
        ),
        (
            {
                "scope": "per_leaf",
                "policy": (("*", "sign"),),
                "keep_warmup": "listed",
            },
            "no tensor is compressed by 'top_k.*Set it to ''",
        ),
    ],
)
def test_a_warm_up_that_would_not_be_one_is_refused(changes, reason):
    with pytest.raises(UserError, match=reason):
        built(small_config(**changes))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"compressor": "sign", "keep_warmup": "exponential"}, "'sign' has none"),
        ({"keep_warmup": "listed(keeps=[25])"}, "each part is a fraction kept"),
        ({"keep_warmup": "listed(epochs=2)"}, "at least one for each"),
        ({"dense_for": "2 epoks"}, "epoch"),
    ],
)
def test_mistakes_are_named(settings, word):
    with pytest.raises((SpecError, ValueError), match=word):
        stages(**settings)

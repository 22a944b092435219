"""Every config, shrunk, is built, and in the slow tier really runs.

In the default tier runs what tests/training/small.py makes of the default config.
"""

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import linen as nn
from ml_collections import ConfigDict

from configs import default
from jaxcomp import training
from jaxcomp.cli.config import is_part, load_config, standard_configs
from jaxcomp.training.tasks.named import named
from jaxcomp.transforms.make import compressor_for
from tests.training.small import built

FOLDER = Path(__file__).resolve().parent.parent / "configs"
PAPERS = sorted(set(FOLDER.glob("papers/*.py")) - {FOLDER / "papers/__init__.py"})
CONFIGS = sorted({*FOLDER.glob("*.py"), *PAPERS} - {FOLDER / "__init__.py"})
# Every experiment that the headers of papers/ name, such as dgc_cifar10:resnet110.
EXPERIMENTS = sorted(
    {
        command
        for path in PAPERS
        for command in re.findall(r"--config=configs/(papers/\S+)", path.read_text())
    }
)
# The configs whose own models are built and run.
MODELS = {
    "alexnet": "alexnet",
    "cifar10": "resnet20",
    "default": "resnet8",
    "densenet": "densenet",
    "lenet": "lenet",
    "logistic": "logistic",
    "lstm": "lstm",
    "mlp": "mlp",
    "mobilenet_v2": "mobilenet_v2",
    "resnet9": "resnet9",
    "vgg": "vgg11",
    "wide_resnet": "wide_resnet",
}
# Data and models of a moment, by task.
SMALL = {
    "classification": {
        "dataset": "digits(size=8)",
        "model": "tiny(width=8)",
        "augment": "crop(pad=1)",
    },
    "language": {"dataset": "grammar(tokens=10_000)", "model": "lstm(width=8)"},
}


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER).with_suffix(""))


def load(path: Path) -> ConfigDict:
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["get_config"]()


def shrunk(path: Path, *, own_model: bool = False) -> Any:
    """Its own method and schedule, on little data with a tiny model or its own."""
    return shrink(load(path), own_model=own_model)


def shrink(config: Any, *, own_model: bool = False) -> Any:
    """As `shrunk`, in place; workers beyond the devices of a test are simulated."""
    model = config.model
    if config.workers > jax.device_count():
        config.mapper = "vmap"
    config.update(SMALL[config.task.partition("(")[0]])
    if own_model:
        config.model = model
        config.dataset = config.dataset.replace("(size=8)", "")  # AlexNet needs 16
    if config.batch_size > 1024:  # of 1,437 examples
        config.batch_size = 4 * config.workers
    config.train_for = "2 steps"
    config.warmup = ""
    return config.lock()


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_config_names_what_exists(path):
    setup = built(shrunk(path))
    state = jax.eval_shape(setup.fresh)
    assert jax.tree.leaves(state.params)
    config: Any = load(path)
    used = compressor_for(config.exchange, config.compressor)
    assert setup.stages.at(10_000).compressor == used


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_config_runs_for_two_steps(path, tmp_path):
    # Adam's counts are integers that optax multiplies by floats.
    with jax.numpy_dtype_promotion("standard"):
        result = training.train_and_evaluate(shrunk(path), tmp_path)
    assert result.steps == 2


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_of_a_paper_names_what_exists(experiment):
    config: Any = load_config(experiment.replace(".py", ""))
    task = config.task.partition("(")[0]
    classes = {"classification": "num_classes", "language": "vocabulary"}[task]
    named(task, "model", config.model, nn.Module, {classes: 10})
    assert built(shrink(config)).total_steps == 2


PARTS = sorted(name for name in standard_configs() if is_part(name))
WHOLE = ["cifar10_dgc", "cifar10_choco", "budget"]  # an exchange, a mixer, a memory


@pytest.mark.parametrize("part", PARTS)
def test_a_part_fits_behind_every_kind_of_method(part):
    """What the whole config had of its own method is gone."""
    for whole in WHOLE:
        config: Any = load_config(f"{whole},{part}")
        config.update(SMALL["classification"], train_for="8 epochs", warmup="")
        assert built(config.lock()).method.name


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_for_two_steps(part, tmp_path):
    config: Any = load_config(f"default,{part}")
    config.update(SMALL["classification"], train_for="2 steps", warmup="")
    assert training.train_and_evaluate(config.lock(), tmp_path).steps == 2


def test_parts_come_in_their_order_and_take_an_argument():
    config = load_config("cifar10_dgc,parts/power_sgd:4,parts/small:7,parts/bfloat16")
    changed = {
        key: value
        for key, value in load_config("cifar10_exact").items()
        if config[key] != value
    }
    assert changed.keys() == {
        *("compressor", "compute_dtype", "exchange", "log_every", "memory"),
        "train_for",
    }
    assert config.exchange == "power_sgd(rank=4)"
    assert config.train_for == "7 steps"
    assert load_config("default,parts/top_k,parts/exact").exchange == "exact"
    assert load_config("default,parts/exact,parts/top_k").exchange == "gather"


OWN_MODELS = [CONFIGS[0].parent / f"{name}.py" for name in MODELS]


@pytest.mark.parametrize("path", OWN_MODELS, ids=name_of)
def test_each_family_of_models_has_a_config(path):
    config = shrunk(path, own_model=True)
    assert config.model.startswith(MODELS[path.stem])
    assert jax.tree.leaves(jax.eval_shape(built(config).fresh).params)


@pytest.mark.slow
@pytest.mark.parametrize("path", OWN_MODELS, ids=name_of)
def test_each_family_of_models_trains(path, tmp_path):
    config = shrunk(path, own_model=True)
    result = training.train_and_evaluate(config, tmp_path)
    assert result.steps == 2
    assert result.test_loss < 100


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_config_changes_known_keys_and_says_what_it_is(path):
    assert set(load(path).keys()) == set(default.get_config().keys())
    header = path.read_text().split('"""')[1]
    for part in ("Reproduces:", "Expected:", "Cost:", "Command:"):
        assert part in header
    assert "TODO" not in header

"""The folder that a command stands for if it names none."""

import pytest

from jaxcomp.cli.config import changed_keys, load_config, override
from jaxcomp.cli.train import default_workdir


def folder(names, *words, suffix=""):
    """The folder of a command line, as `jaxcomp train` finds it."""
    config = override(load_config(names), words)
    return str(default_workdir(names, changed_keys(config, words), suffix))


def test_configs_parts_keys_and_suffix_are_the_name():
    assert folder("configs/default.py") == folder("default") == "runs/default"
    assert folder("default,parts/sign", suffix="b.2") == "runs/default+sign.b.2"
    assert folder("convex/base", "--config.seed=3") == "runs/base,seed=3"
    found = folder("default", "--config.compressor=top_k(keep=0.1) | cast")
    assert found == "runs/default,compressor=top_k-keep=0.1-cast"


def test_the_order_of_words_and_how_they_are_written_do_not_count():
    found = folder("default", "--config.seed=2", "--config.deterministic=true")
    assert found == folder("default", "--config.deterministic", "1", "--config.seed=2")
    assert found == "runs/default,deterministic=True,seed=2"
    assert folder("default", "--config.seed=1", "--config.seed=2").endswith(",seed=2")


def test_what_leaves_a_run_the_same_is_not_in_its_name():
    words = ["--config.log_every=3", "--config.data_dir=/far/away"]
    assert folder("default", *words) == "runs/default"
    longer = folder("default", "--config.train_for=30 epochs")
    assert longer == "runs/default,train_for=30-epochs"


def test_long_names_are_cut_and_stay_different():
    specs = [f"top_k(keep=0.{'1' * 300}{n})" for n in range(2)]
    found = {folder("default", f"--config.compressor={spec}") for spec in specs}
    assert len(found) == 2
    assert all(len(name) < 120 for name in found)


@pytest.mark.parametrize("value", ["-1-e-3", "../..", "a\nb", "ä ß", "()", "$(ls)"])
def test_names_are_safe_in_every_file_system(value, tmp_path):
    name = default_workdir("default", {"memory": value})
    assert len(name.parts) == 2
    (tmp_path / name).mkdir(parents=True)
    assert name.name.isascii()
    assert not {*name.name} & set(" ()$\n|'")

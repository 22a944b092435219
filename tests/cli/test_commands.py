"""The command line as a whole: help, lists, explanations, completion, how it ends."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from argcomplete.finders import CompletionFinder

from jaxcomp import cli, compressors, exchanges, memory
from jaxcomp.cli import completion, config
from jaxcomp.cli.config import (
    find_config,
    is_part,
    let_configs_import,
    load_config,
    split_names,
    standard_configs,
)
from jaxcomp.cli.lists import KINDS, registry_of

PARSER = cli.make_parser()


def commands(parser, above=""):
    """Each command and each action of one, with its parser."""
    for action in parser._actions:
        for name, inner in (
            (action.choices or {}).items() if action.nargs == "A..." else ()
        ):
            yield f"{above}{name}", inner
            yield from commands(inner, f"{above}{name} ")


ALL = dict(commands(PARSER))


def examples(text):
    """The command lines of an epilog, each as words."""
    joined = text.replace("\\\n", " ")
    found = re.findall(r"^  (jaxcomp .*)$", joined, flags=re.MULTILINE)
    return [shlex.split(line.partition(" > ")[0])[1:] for line in found]


def printed(capsys, *words):
    """What a command prints."""
    assert cli.main(words) == 0
    return capsys.readouterr().out


# --- Help ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *ALL])
def test_help_has_examples_that_the_parser_takes(name):
    parser = ALL.get(name, PARSER)
    lines = examples(parser.epilog or "")
    assert lines
    for words in lines:
        args, others = PARSER.parse_known_args(words)
        assert not name or args.command == name.split()[0]
        assert not others or hasattr(args, "takes_config_keys")
        if getattr(args, "config", None):
            for file in split_names(args.config):
                assert find_config(file).is_file()
        if others:
            config = load_config(args.config)
            keys = {word.partition("=")[0].removeprefix("--config.") for word in others}
            assert keys <= set(config)


def test_help_and_completion_start_without_jax():
    program = (
        "import sys; from jaxcomp import cli; cli.make_parser(['--help', 'launch']); "
        "print(sorted({'jax', 'numpy', 'flax', 'rich', 'ml_collections', 'sklearn', "
        "'matplotlib', 'tensorflow_datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- Ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("topology rign 4", "jaxcomp topology: "),
        ("topology ring four", "jaxcomp topology: "),
        ("data prepare", "jaxcomp data prepare: "),
        ("nonsense", "jaxcomp: "),
        ("list --what", "jaxcomp: "),
        ("train", "jaxcomp train: "),
    ],
)
def test_an_error_is_one_line_and_debug_shows_where_it_came_from(
    words, program, capsys
):
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    first, *caret = err.splitlines()
    assert out == ""
    assert first.startswith(program)
    assert len(caret) in (0, 2)
    assert cli.main([*words.split(), "--debug"]) == 2
    longer = capsys.readouterr().err
    assert longer.startswith("Traceback (most recent call last):")
    assert first in longer.splitlines()


# --- Lists --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_has_every_name_with_a_line_about_it(kind, capsys):
    rows = json.loads(printed(capsys, "list", kind, "--json"))
    assert [row["name"] for row in rows] == sorted(registry_of(kind))
    for row in rows:
        assert row["about"].endswith((".", ":")), row
        assert "\n" not in row["about"]
    lines = printed(capsys, "list", kind).splitlines()
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


def test_the_list_of_configs_has_titles_and_all_of_them_load(capsys):
    rows = json.loads(printed(capsys, "list", "configs", "--json"))
    found = {row["name"]: row["about"] for row in rows}
    assert found["default"].startswith("Handwritten digits with top-k gradients")
    assert {"cifar10_dgc", "convex/choco_top_k", "parts/dgc"} <= found.keys()
    assert all(found.values())
    for name in found:
        assert load_config(f"default,{name}" if is_part(name) else name)
    assert (
        load_config("convex/base").to_dict()
        == load_config("configs/convex/base.py").to_dict()
    )


def test_configs_of_a_wheel_are_found_without_a_checkout(tmp_path, monkeypatch):
    shutil.copytree(config._PACKAGE.parent / "configs", tmp_path / "shipped/configs")
    monkeypatch.setattr(config, "_PACKAGE", tmp_path)
    monkeypatch.delitem(sys.modules, "configs", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere")])
    path = standard_configs()["cifar10_dgc"]
    assert path == tmp_path / "shipped/configs/cifar10_dgc.py"
    let_configs_import()
    assert sys.path[-1] == str(tmp_path / "shipped")


# --- Explanations -------------------------------------------------------------------


def explained(capsys, *words):
    """What is printed, and the names that go together with the method, by kind."""
    text = printed(capsys, "explain", *words)
    found = re.findall(r"^(\w+): (\w+(?:, \w+)+)$", text, re.M)
    return text, {kind: set(names.split(", ")) for kind, names in found}


def test_a_compressor_is_explained_by_its_facts_and_the_rules_of_runs(capsys):
    text, fits = explained(capsys, "sign", "--elements=320")
    assert text.startswith("sign: ")
    assert "signSGD" in text
    assert re.search(r"^for +a vector of 320$", text, re.M)
    assert re.search(r"^a message +44 B instead of 1.28 kB$", text, re.M)
    assert re.search(rf"^contraction +{1 / 320:.4g}", text, re.M)
    assert re.search(r"^unbiased +no", text, re.M)
    assert re.search(r"^  not exact +'exact' has no use for the compr", text, re.M)
    assert fits["memories"] == set(memory.REGISTRY)
    assert {"gather", "two_phase"} <= fits["exchanges"]
    assert not {"exact", "aligned_psum"} & fits["exchanges"]


def test_what_may_lose_more_than_there_is_goes_with_no_memory_that_keeps(capsys):
    spec = "top_k(keep=0.5) | qsgd(levels=1)"
    text, fits = explained(capsys, spec, "--elements=5000")
    assert "\nqsgd: " in text
    assert re.search(r"^contraction +none", text, re.M)
    assert fits["memories"] == {"local_momentum", "none", "shared_momentum"}
    assert re.search(r"^  not error_feedback .*may lose more than there is", text, re.M)


def test_an_exchange_a_memory_and_mixers_are_explained(capsys):
    text, fits = explained(capsys, "power_sgd(rank=2)", "--elements=1000")
    assert re.search(r"^a message +4 kB", text, re.M)  # a vector has no low rank
    assert "compressors" not in fits
    _, fits = explained(capsys, "aligned_psum", "--elements=1000")
    aligned = {n for n in compressors.REGISTRY if compressors.make(n).aligned}
    assert fits["compressors"] == aligned
    text, fits = explained(capsys, "error_feedback", "--elements=1000")
    assert re.search(r"^keeps what is not sent +yes$", text, re.M)
    assert "majority_vote" not in fits["exchanges"]
    assert "terngrad" not in fits["compressors"]
    _, fits = explained(capsys, "choco(gamma=0.5)", "--elements=1000")
    assert "sign" in fits["compressors"]
    _, fits = explained(capsys, "local_sgd(h=4)", "--elements=1000")
    assert fits["exchanges"] == set(exchanges.REGISTRY)


# --- Completion ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("to", ["topology"]),
        ("data pre", ["prepare"]),
        ("train --work", ["--workdir"]),
        ("train --config cifar10_d", ["cifar10_dgc"]),
        ("train --config default,parts/d", ["default,parts/dgc"]),
        ("completion z", ["zsh"]),
    ],
)
def test_a_shell_is_told_what_may_follow(line, offers):
    *words, last = line.split(" ")
    finder = CompletionFinder(completion.with_names(cli.make_parser(words)))
    found = finder._get_completions(["jaxcomp", *words], last, "", None)
    assert [word.strip() for word in found] == offers


def test_a_shell_asks_the_program():
    line = "jaxcomp train --config=default,parts/d"
    shell = f"exec 8>&1; exec {sys.executable} -m jaxcomp"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        ["sh", "-c", shell], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("default,parts/dgc")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_shell_can_read_its_script(shell, capsys, tmp_path):
    path = tmp_path / "script"
    path.write_text(printed(capsys, "completion", shell))
    assert "jaxcomp" in path.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)

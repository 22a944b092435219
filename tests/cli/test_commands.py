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
from jaxcomp.cli.explain import KINDS, registry_of

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
    return json.loads(printed(capsys, "explain", *words, "--json"))


def fitting(verdicts):
    return {verdict["name"] for verdict in verdicts if not verdict["why_not"]}


def test_a_compressor_is_explained_by_its_facts_and_the_rules_of_runs(capsys):
    found = explained(capsys, "sign", "--elements=320")
    assert found["message_bits"] == 320 + 32
    assert found["contraction"] == pytest.approx(1 / 320)
    assert not found["unbiased"]
    assert fitting(found["memories"]) == set(memory.REGISTRY)
    assert {"gather", "two_phase"} <= fitting(found["exchanges"])
    assert not {"exact", "aligned_psum"} & fitting(found["exchanges"])
    gather = next(v for v in found["exchanges"] if v["name"] == "gather")
    assert gather["sent"] == 352 / 8
    assert gather["links"] == 7 * 352 / 8  # to each of seven others
    assert "signSGD" in found["parts"][0]["references"]


def test_what_may_lose_more_than_there_is_goes_with_no_memory_that_keeps(capsys):
    found = explained(capsys, "top_k(keep=0.5) | qsgd(levels=1)", "--elements=5000")
    assert [part["name"] for part in found["parts"]] == ["top_k", "qsgd"]
    assert found["contraction"] is None
    assert fitting(found["memories"]) == {"local_momentum", "none", "shared_momentum"}
    kept = next(v for v in found["memories"] if v["name"] == "error_feedback")
    assert "may lose more than there is" in kept["why_not"]


def test_an_exchange_a_memory_and_mixers_are_explained(capsys):
    found = explained(capsys, "power_sgd(rank=2)", "--elements=1000")
    assert found["sent_bytes"] == 4000  # a vector has no low rank
    assert found["compressor"] is None
    assert "compressors" not in found
    found = explained(capsys, "aligned_psum", "--elements=1000")
    takes = fitting(found["compressors"])
    aligned = {n for n in compressors.REGISTRY if compressors.make(n).aligned}
    assert takes == aligned
    found = explained(capsys, "error_feedback", "--elements=1000")
    assert (found["keeps"], found["momentum"]) == (True, False)
    assert "majority_vote" not in fitting(found["exchanges"])
    assert "terngrad" not in fitting(found["compressors"])
    found = explained(capsys, "choco(gamma=0.5)", "--elements=1000")
    assert "sign" in fitting(found["compressors"])
    found = explained(capsys, "local_sgd(h=4)", "--elements=1000")
    assert fitting(found["exchanges"]) == set(exchanges.REGISTRY)


def test_an_explanation_is_text_for_people(capsys):
    text = printed(capsys, "explain", "top_k(keep=0.1)", "--elements=1000")
    assert text.startswith("top_k: Keep the k = round(keep * n) elements")
    assert "arXiv:1704.05021" in text
    assert re.search(r"^for +a vector of 1,000$", text, re.M)
    assert re.search(r"^a message +\S+ k?B instead of \S+ k?B$", text, re.M)
    assert re.search(r"^  error_feedback +yes$", text, re.M)
    assert re.search(r"^  exact +no: 'exact' has no use for the compr", text, re.M)


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

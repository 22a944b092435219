"""What documents, docstrings and --help show is accepted, with the memory beside it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxcomp
from jaxcomp import SpecError
from jaxcomp.compressors import REGISTRY
from tests.test_docs import DOCUMENTS, commands, section
from tests.test_site import CHOOSING, rows

ROOT = Path(__file__).resolve().parent.parent
TREE = {
    "w": jax.ShapeDtypeStruct((256, 1000), jnp.float32),
}
# Biased, without a bound: no memory takes them, and the text does not say so.
ALONE = ("sign(s", "terngrad(clip", "count_sketch(0.4, keep", "count_sketch(ratio=0.4")
_CALL = r"\w+(?:\([^()]*\))?"
_SPEC = re.compile(rf"{_CALL}(?: ?\| ?{_CALL})*")


def texts() -> Iterator[str]:
    """Documents, and the strings of programs: docstrings, what --help prints."""
    yield from (path.read_text() for path in DOCUMENTS)
    files = [*ROOT.glob("jaxcomp/**/*.py"), *ROOT.glob("configs/**/*.py")]
    for file in (*files, ROOT / "train.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value if "\n" in node.value else f"`{node.value}`"


def shown() -> set[str]:
    """Whole compressors within code or quotes, but no patterns and no mistakes."""
    quoted = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|'((?:[^'\n]|(?<==)'\w+')+)'")
    parts = (part for text in texts() for each in quoted.findall(text) for part in each)
    specs = {part.replace("\\|", "|") for part in parts}
    return {
        spec
        for spec in specs
        if _SPEC.fullmatch(spec)
        and {*re.findall(r"(?:^|\| ?)(\w+)", spec)} <= {*REGISTRY}
    } - {"top_k(keep=5)", "top_k(keep=cap)", "qsgd(levels, norm)"}


def begun(compressor: str, memory: str) -> None:
    """Build it, and make its state, which is where sizes are known."""
    exchange = jaxcomp.make_exchange(compressor=compressor, memory=memory)
    jax.eval_shape(exchange.init, TREE)


def test_every_compressor_that_is_shown_is_taken_by_error_feedback_if_it_is_biased():
    found = {spec for spec in shown() if "{" not in spec}
    assert len(found) > 80
    assert {spec for spec in found if "|" in spec}
    for spec in sorted(found):
        built = jaxcomp.make_compressor(spec)
        if built.unbiased:
            begun(spec, "none")
        elif spec.startswith(ALONE) and built.contraction(TREE["w"]) is None:
            with pytest.raises(SpecError, match="may lose more than there is"):
                begun(spec, "error_feedback")
        else:
            begun(spec, "error_feedback")


def test_the_choice_names_memories_that_take_its_compressors():
    biased = []
    for first, second, reason in rows(section(CHOOSING, "Which memory")):
        memories = re.findall(r"`(none|dgc|error_feedback)`", second)
        specs = re.findall(r"`([^`]+)`", first) or biased
        biased = biased or specs
        for spec in specs:
            spec = "qsgd(levels=127)" if spec == "qsgd" else spec
            for memory in memories:
                begun(spec, memory)
            if "refused" in reason:
                with pytest.raises(SpecError, match="may lose more"):
                    begun(spec, "error_feedback")
    assert biased


def test_commands_that_name_a_compressor_and_a_memory_are_accepted():
    lines = [line for path in DOCUMENTS for line in commands(path.read_text())]
    pairs = [
        (compressor[1], memory[1])
        for line in lines
        if (
            compressor := re.search(
                r"--config\.compressor='?([^' ]+(?: \| [^']+)?)", line
            )
        )
        and (memory := re.search(r"--config\.memory=(\w+)", line))
    ]
    assert len(pairs) >= 3
    for compressor, memory in pairs:
        begun(compressor, memory)

"""The facts themselves, each part a function without arguments."""

import contextlib
import csv
import hashlib
import inspect
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp import exchanges, memory
from jaxcomp.cli import main as command
from jaxcomp.cli import make_parser
from jaxcomp.cli.config import load_config
from jaxcomp.cli.lists import KINDS, registry_of
from jaxcomp.compressors import REGISTRY as COMPRESSORS
from jaxcomp.mixers import gossip, local
from jaxcomp.training import train_and_evaluate
from jaxcomp.transforms import optimizers
from tests import every_method

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ARGUMENTS = {"threshold": "(v=0.5)"}
EXIT_CODES = (
    ["--help"],
    ["--version"],
    [],
    ["list", "compressors"],
    ["list", "nothing"],
    ["explain", "top_k(keep=2)"],
    ["train", "--config=no_such.py", "--workdir=nowhere"],
    ["train", "--config=default", "--workdir=", "--dry-run"],
    ["report", "no_such_folder"],
    ["compare", "no_such_folder"],
    ["nothing"],
)


def names() -> list[str]:
    """Of the package."""
    return sorted(jaxcomp.__all__)


def arguments() -> dict:
    """Spec names of every kind, with arguments, types and defaults."""
    return {
        kind: {name: _signature(make) for name, make in registry_of(kind).items()}
        for kind in KINDS
    }


def _signature(make) -> list[str]:
    try:
        found = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return [re.sub(r"(\w+\.)+|at 0x\w+", "", str(p)) for p in found]


def config() -> dict:
    """Keys and defaults of configs/default.py, and the values of all others."""
    result = {}
    for path in sorted(CONFIGS.rglob("*.py")):
        if "def get_config" in path.read_text():
            values = load_config(str(path)).to_dict()
            of_default = result.get("default", {})
            result[str(path.relative_to(CONFIGS).with_suffix(""))] = {
                key: repr(value)
                for key, value in values.items()
                if of_default.get(key) != repr(value)
            }
    return result


def flags() -> dict:
    """Flags of each command, with their defaults."""
    parser: Any = make_parser()
    actions = parser._subparsers._group_actions[0].choices
    return {
        name: sorted(
            f"{'|'.join(a.option_strings) or a.dest}={a.default!r}"
            for a in parser._actions
        )
        for name, parser in actions.items()
    }


def exit_codes() -> dict:
    """Of commands that end well, and of those that users get wrong."""
    result = {}
    for words in EXIT_CODES:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            try:
                code = command(words)
            except SystemExit as left:
                code = left.code
        result[" ".join(words)] = code or 0
    return result


def run() -> dict:
    """Columns of the tables and files of the folder of a short run."""
    settings = load_config(str(CONFIGS / "default.py"))
    settings.update(model="tiny", train_for="1 epoch", layers_every="1 epoch", ema=0.9)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            train_and_evaluate(settings, folder)
        files = {
            re.sub(r"[0-9a-f]{16,}|\d{3,}.*", "N", str(p.relative_to(folder)))
            for p in Path(folder).rglob("*")
            if p.is_file()
        }
        tables = {
            path.name: next(csv.reader(path.open()))
            for path in sorted(Path(folder).glob("*.csv"))
        }
        (metadata,) = Path(folder).rglob("_METADATA")
        leaves = json.loads(metadata.read_text())["tree_metadata"]
    return {"files": sorted(files), "tables": tables, "checkpoint": sorted(leaves)}


def payloads() -> dict:
    """What each compressor makes of fixed vectors: the bits, and their number."""
    x = jnp.asarray(np.random.default_rng(0).standard_t(3, 3000), jnp.float32)
    result = {}
    for name in COMPRESSORS:
        made = jaxcomp.make_compressor(name + ARGUMENTS.get(name, ""))
        for shape in ((3000,), (60, 50)):
            given = x.reshape(shape)
            spec = jax.ShapeDtypeStruct(shape, jnp.float32)
            state = made.init(spec)
            payload = made.compress(given, state, jax.random.key(1))
            leaves = jax.tree.leaves(payload)
            result[f"{made.name} {shape}"] = [
                int(jaxcomp.nbits(payload)),
                _hash(*[np.asarray(leaf).tobytes() for leaf in leaves]),
            ]
    return result


def programs() -> dict:
    """One step of every compressor, exchange, memory, mixer and optimiser."""
    result = {}
    for name in COMPRESSORS:
        spec = name + ARGUMENTS.get(name, "")
        exchange = exchanges.make("gather", spec)
        result[f"gather({name})"] = _program(jaxcomp.distributed(exchange, seed=0))
    for name in (*exchanges.REGISTRY, *gossip.REGISTRY, *local.REGISTRY):
        result[name] = _program(every_method.link(name))
    for name in memory.REGISTRY:
        exchange = jaxcomp.make_exchange("gather", "top_k(keep=0.1)", name)
        result[f"memory {name}"] = _program(jaxcomp.distributed(exchange, seed=0))
    for name in ("dgc_sgd", "ef_signsgd", "lion", "one_bit_adam", "signum"):
        compressor = "top_k(keep=0.1)" if name == "dgc_sgd" else "sign"
        exchange = exchanges.make("gather", compressor)
        make = getattr(optimizers, name)
        more = {"dense_steps": 5} if name == "one_bit_adam" else {}
        tx = make(0.1, exchange, seed=0, **more)
        result[f"optimizer {name}"] = _program(tx)
    return result


def _program(tx: optax.GradientTransformation) -> str:
    """The hash of a step's StableHLO, in which functions have numbers for names."""
    params = every_method.trees(every_method.WORKERS)

    def step(gradient, params, state):
        return tx.update(gradient, state, params)

    def start(params):
        return tx.init(params)

    state = jax.vmap(start, axis_name="workers")(params)
    mapped = jax.jit(jax.vmap(step, axis_name="workers"))
    text = mapped.lower(params, params, state).as_text()
    text = re.sub(r"module @\w+", "module", text)
    order: dict[str, str] = {}
    named = re.compile(r'@(?:"[^"]*"|[\w.]+)')
    text = named.sub(lambda m: order.setdefault(m[0], f"@f{len(order)}"), text)
    return _hash(text.encode())


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


PARTS = {
    "names": names,
    "arguments": arguments,
    "config": config,
    "flags": flags,
    "exit_codes": exit_codes,
    "run": run,
    "payloads": payloads,
    "programs": programs,
}

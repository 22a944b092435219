"""What the documents show is run, and what they promise is kept."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from jaxcomp import (
    SpecError,
    compressors,
    data,
    exchanges,
    memory,
    models,
    report,
    scope,
    training,
)
from jaxcomp.cli import sweeps
from jaxcomp.convex import averages, problems
from jaxcomp.core.specs import Call, parse
from jaxcomp.data import text as texts
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import REGISTRY as GRAPHS
from jaxcomp.report import charts
from jaxcomp.training import optimizers as trainer_optimizers
from jaxcomp.training import schedules, stages, tasks
from jaxcomp.transforms import optimizers
from tests import laws
from tests.training.small import small_config

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text()
YOUR_LOOP = (ROOT / "docs" / "your-loop.md").read_text()
METHODS = (ROOT / "docs" / "methods.md").read_text()
GUIDE = (ROOT / "docs" / "extend.md").read_text()
TESTBED = (ROOT / "docs" / "convex.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[str]:
    """Indented command lines."""
    return [
        line.strip().split("  #")[0].strip()
        for line in text.splitlines()
        if re.match(r"^    (make|python|jaxcomp|pytest) ", line)
    ]


def check_programs(texts: list[str], prints: int) -> None:
    """All blocks of a page in order, as a reader pastes them; a page after the other.

    In one fresh process, because to start one takes longer than most pages do.
    """
    pages = [f"exec({chr(10).join(blocks(text))!r}, {{}})" for text in texts]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(pages)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)  # (.+)", "\n".join(texts))
    printed = done.stdout.splitlines()
    assert len(promised) == len(printed) == prints
    for promise, line in zip(promised, printed, strict=True):
        assert promise.startswith(line)


def page(name: str) -> str:
    """A page of the documentation."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def section(document: str, title: str) -> str:
    """What a document says between one heading of the second level and the next."""
    return document.split(f"\n## {title}\n")[1].split("\n## ")[0]


PAGES = ("methods", "predict", "quickstart", "index", "choosing", "faq", "peers")


@pytest.mark.parametrize(
    ("texts", "prints"),
    [
        (
            [
                README,
                YOUR_LOOP.split("\n## Under jit\n")[0],
                section(YOUR_LOOP, "Under jit"),
                *map(page, (*PAGES, "notebooks")),
            ],
            22,
        ),
        ([section(YOUR_LOOP, "Decentralised, under jit")], 5),  # of eight workers
    ],
    ids=["four workers", "eight"],
)
def test_programs_run_and_print_what_they_say(texts, prints):
    check_programs(texts, prints)


def test_the_sweep_of_the_document_is_one(tmp_path):
    text = (ROOT / "docs" / "sweeps.md").read_text()
    (tmp_path / "a.py").write_text(blocks(text)[0])
    assert len(sweeps.read_sweep(tmp_path / "a.py").settings) == 18


def test_the_commands_of_the_documents_exist():
    """Targets are in the Makefile; flags of train.py are real."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    keys = set(small_config().keys())
    found = [command for path in DOCUMENTS for command in commands(path.read_text())]
    assert len(found) > 30
    for command in found:
        program, *words = command.split()
        if program == "make":
            assert {w for w in words if "=" not in w} <= set(targets), command
        if program == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]), command
        elif program == "python":
            assert (ROOT / words[0]).exists()
            for key in re.findall(r"--config\.(\w+)=", command):
                assert key in keys
            for file in re.findall(r"--config=(\S+)", command):
                for part in file.split(","):
                    assert (ROOT / part).exists()


def loaded(file: Path, text: str) -> Any:
    """The module of a text, which others find by its name."""
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def half(tmp_path, monkeypatch):
    """The guide's compressor, added as the guide says: its file and its line."""
    module = loaded(tmp_path / "half.py", blocks(GUIDE)[0])
    monkeypatch.setitem(compressors.REGISTRY, "half", module.half)
    return jaxcomp.make_compressor("half")


def test_the_guides_compressor_obeys_the_laws(half):
    key = jax.random.key(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 9)), jnp.float32)
    laws.check_round_trip(half, x, key)
    laws.check_finite(half, x * 1e37, key)
    laws.check_non_finite_surfaces(half, x)
    laws.check_same_key_same_payload(half, x, key)
    laws.check_no_recompilation(half, x, key)
    laws.check_bits(half, x, key)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):  # beyond 65504 all saturate
        largest = jnp.full(5, jnp.finfo(dtype).max, dtype)
        laws.check_finite(half, largest, key)
    error = np.abs(np.asarray(half.decompress(half.compress(x, (), key)[0], x) - x))
    assert (error <= 2**-11 * np.abs(np.asarray(x))).all()


def test_the_guides_compressor_composes_and_trains(half, tmp_path):
    """As a spec string, behind '|', and in the trainer, without any other change."""
    composed = jaxcomp.make_compressor("top_k(keep=0.1) | half")
    assert composed.contraction(jax.ShapeDtypeStruct((10,), jnp.float32)) == 0
    config = small_config(compressor="half", train_for="2 steps")
    result = training.train_and_evaluate(config, tmp_path / "run")
    assert result.traffic.fewer == pytest.approx(2, rel=0.01)  # of two workers


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The guide's other parts, all in one file."""
    text = "\n\n".join(blocks(GUIDE.split("\n# The other parts\n")[1]))
    return loaded(tmp_path_factory.mktemp("parts") / "parts.py", text)


def test_the_guides_methods_are_built_by_name_and_run(parts, monkeypatch):
    tree = {"b": jnp.arange(12.0).reshape(4, 3), "w": jnp.ones((4, 3, 3)) / 3}

    def stepped(exchange):
        def step(x):
            state = exchange.init(x)
            return exchange.average(x, state, jax.random.key(0))

        return jax.jit(jax.vmap(step, axis_name="workers"))(tree)

    monkeypatch.setitem(exchanges.REGISTRY, "rounded", parts.rounded)
    monkeypatch.setitem(memory.REGISTRY, "damped", parts.damped)
    monkeypatch.setitem(local.REGISTRY, "half_way", parts.half_way)
    monkeypatch.setitem(GRAPHS, "line", parts.line)
    monkeypatch.setitem(scope.REGISTRY, "biases_together", parts.biases_together)
    rounded = jaxcomp.make_exchange("rounded(dtype=float16)", memory="damped(by=0.25)")
    assert rounded.name == "damped(by=0.25): rounded(dtype='float16')"
    out = stepped(rounded)
    np.testing.assert_allclose(out.mean["b"][0], tree["b"].mean(0) / 4, rtol=1e-3)
    np.testing.assert_allclose(out.sent["w"].mean(0), out.mean["w"][0], rtol=1e-6)
    with pytest.raises(SpecError, match="'float17'. Did you mean 'float16'"):
        jaxcomp.make_exchange("rounded(dtype=float17)")
    mixer = jaxcomp.make_mixer("half_way(h=2)", exchange="exact")
    assert (mixer.name, mixer.schedule) == ("half_way(h=2), exact", (0, 1))
    graph = gossip.topology("line", 4)
    assert (graph.name, graph.degree) == ("line", 2)
    plan = scope.make_plan("biases_together", "sign")
    assert plan.title == "biases_together: sign"
    assert stepped(jaxcomp.make_exchange("gather", "sign", "none", plan)).info


def test_the_guides_run_trains(parts, monkeypatch, tmp_path):
    """Schedule, model, data set and division, by name in a config."""
    monkeypatch.setitem(schedules.REGISTRY, "halving", parts.halving)
    monkeypatch.setitem(models.REGISTRY, "linear", parts.Linear)
    monkeypatch.setitem(data.REGISTRY, "stripes", parts.stripes)
    monkeypatch.setitem(data.PARTITIONS, "in_turn", parts.in_turn)
    config = small_config(
        dataset="stripes",
        model="linear",
        partition="in_turn",
        schedule="halving(epochs=1)",
        batch_size=32,
        compressor="none",
        memory="none",
        augment="",  # a shift by one row would turn the stripes around
    )
    result = training.train_and_evaluate(config, tmp_path)
    assert result.test_accuracy == 1
    monkeypatch.setitem(charts.REGISTRY, "learning_rate", parts.LEARNING_RATE)
    page = report.write_report(tmp_path).read_text()
    assert parts.LEARNING_RATE.caption in page
    assert "linear on stripes</h1>" in page


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)


# What each heading of docs/methods.md describes. A partition `dealt` is not in the
# registry, as it is no division of the examples but of each batch.
FAMILIES: dict[str, dict[str, Any]] = {
    "Compressors": compressors.REGISTRY,
    "Scopes": scope.REGISTRY,
    "Exchanges": exchanges.REGISTRY,
    "Memories": memory.REGISTRY,
    "Whole optimisers": {
        name: None
        for name, made in vars(optimizers).items()
        if name[0] != "_" and getattr(made, "__module__", "") == optimizers.__name__
        if inspect.isfunction(made)
    },
    "Gossip": gossip.REGISTRY,
    "Topologies": GRAPHS,
    "Local updates": local.REGISTRY,
    "Tasks": tasks.REGISTRY,
    "Models": models.REGISTRY,
    "Language models": models.LANGUAGE,
    "Data sets": data.REGISTRY,
    "Augmentations": data.AUGMENTATIONS,
    "Evaluation views": data.VIEWS,
    "Texts": texts.REGISTRY,
    "Partitions": {"dealt": None, **data.PARTITIONS},
    "Schedules": schedules.REGISTRY,
    "Warm-ups": stages.REGISTRY,
    "The trainer's optimisers": trainer_optimizers.REGISTRY,
}
# Those of which each method has a section of its own, and what else is a section there.
SECTIONS = {
    "Compressors": ["Bits against error", "Composition"],
    "Exchanges": [],
    "Memories": [],
    "Gossip": [],
    "Local updates": [],
}
FIELDS = (
    *("Spec", "What it does", "Formula", "Bits", "Law", "Error"),
    *("Differences", "Source"),
)
OPTIONAL = {"Error", "Differences"}
GIVEN_BY_THE_RUN = {
    *("num_classes", "statistics", "dtype", "parent", "name", "data_dir", "seed"),
}
CONVEX = {
    "Problems": problems.REGISTRY,
    "Learning rates and averages": averages.REGISTRY,
}


@pytest.mark.parametrize(
    ("document", "title", "registry"),
    [
        *((METHODS, title, registry) for title, registry in FAMILIES.items()),
        *((TESTBED, title, registry) for title, registry in CONVEX.items()),
    ],
    ids=[*FAMILIES, *CONVEX],
)
def test_the_table_of_a_family_has_each_of_its_methods_once(document, title, registry):
    cells = " ".join(first_cells(section(document, title)))
    assert sorted(re.findall(r"`(\w+)[(`]", cells)) == sorted(registry)


def described(title: str) -> dict[str, str]:
    """Method -> its section."""
    _, *parts = section(METHODS, title).split("\n### ")
    found = [part.partition("\n")[::2] for part in parts]
    names = [name for name, _ in found if name not in SECTIONS[title]]
    assert len(names) == len(set(names))
    return {name: text for name, text in found if name in names}


@pytest.mark.parametrize("title", SECTIONS)
def test_each_method_of_a_family_has_a_section_with_the_same_fields(title):
    found = described(title)
    assert sorted(found) == sorted(FAMILIES[title])
    for name, text in found.items():
        labels = re.findall(r"^- \*\*([^*]+)\*\*: ", text, re.MULTILINE)
        assert labels == [f for f in FIELDS if f in labels], name
        missing = {*FIELDS} - {*labels}
        assert missing <= OPTIONAL, f"{name}: {missing}"
        assert "Error" in labels or title != "Compressors", name


SPECS = [
    *(
        (title, re.findall(r"- \*\*Spec\*\*: `(.*)`\n", text)[0])
        for title in SECTIONS
        for text in described(title).values()
    ),
    *(
        (title, spec)
        for title in FAMILIES
        if title not in {*SECTIONS, "Whole optimisers"}
        for cell in first_cells(section(METHODS, title))
        for spec in re.findall(r"`([^`]+)`", cell)
        if spec != "dealt"
    ),
]


@pytest.mark.parametrize(("title", "spec"), SPECS)
def test_a_spec_shows_all_arguments_with_their_defaults(title, spec):
    call = parse(spec)
    assert isinstance(call, Call)
    factory = FAMILIES[title][call.name]
    parameters = inspect.signature(factory).parameters
    assert set(call.kwargs) <= set(parameters)
    unseen = {*getattr(factory, "keywords", ()), *GIVEN_BY_THE_RUN}
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty and name not in unseen:
            assert call.kwargs[name] == parameter.default, name


def test_the_table_of_compressors_says_their_facts():
    """A row "the same with `unbiased=True`" is about the method of the row before."""
    name = ""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|",
        section(METHODS, "Compressors"),
        re.MULTILINE,
    )
    for shown, unbiased, aligned in rows:
        named = re.match(r"\[`(\w+)`\]", shown)
        given = re.findall(r"\w+=(?:True|False)", shown)
        name = named[1] if named else name
        if named or given:
            facts = jaxcomp.make_compressor(f"{name}({', '.join(given)})")
            for said, fact in ((unbiased, facts.unbiased), (aligned, facts.aligned)):
                if said in ("yes", "no"):
                    assert said == ("yes" if fact else "no"), shown


def anchors(text: str) -> set[str]:
    """The anchors that a page of GitHub gives to the headings of a document."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", without_code, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(
            re.fullmatch(rf"{slug}(-\d+)?", other) is not None for other in found
        )
        found.append(f"{slug}-{again}" if again else slug)
    return set(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file) if file else path
        assert page.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(page.read_text()), f"{path.name}: {target}"

"""Spec strings: what they mean, what is refused, and that nothing is evaluated."""

import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxcomp import compressors, make_compressor, make_mixer
from jaxcomp.core.specs import Call, Pipe, SpecError, build, parse, suggest
from jaxcomp.mixers import gossip

TABLES = tomllib.loads(Path(__file__).with_name("specs.toml").read_text())


def thing(size: int = 1, *, inner: Any = None) -> tuple[int, Any]:
    """A factory with one positional and one keyword argument."""
    if size < 0:
        raise SpecError(f"size is at least 0, not {size}")
    return size, inner


def needy(size: int) -> int:
    return size


THINGS = {"thing": thing, "needy": needy}


def call(text: str) -> Call:
    parsed = parse(text)
    assert isinstance(parsed, Call)
    return parsed


@pytest.mark.parametrize(("text", "canonical"), TABLES["canonical"])
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert str(parse(canonical)) == canonical


def test_values_have_their_types() -> None:
    values = call("f(a=1, b=0.5, c=-3, d='s', e=True, g=None, h=[1, 2])").kwargs
    expected = {"a": 1, "b": 0.5, "c": -3, "d": "s", "e": True, "g": None, "h": (1, 2)}
    assert values == expected
    assert type(values["a"]) is int


def test_a_value_may_be_a_spec() -> None:
    inner = call("f(scope=whole(size=2))").kwargs["scope"]
    assert (inner.name, inner.kwargs) == ("whole", {"size": 2})


@pytest.mark.parametrize("text", ["a | b | c", "(a | b) | c", "a | (b | c)"])
def test_pipes_nest_to_the_right(text: str) -> None:
    pipe = parse(text)
    assert isinstance(pipe, Pipe)
    assert pipe.left.name == "a"
    assert isinstance(pipe.right, Pipe)
    assert isinstance(pipe.right.right, Call)
    assert (pipe.right.left.name, pipe.right.right.name) == ("b", "c")


NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,5}", fullmatch=True).filter(
    lambda name: name.isidentifier() and not __import__("keyword").iskeyword(name)
)
VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text("ab '\"\\|()", max_size=5),
)


@hypothesis.given(name=NAMES, kwargs=st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_shown_parses_to_the_same(name: str, kwargs: dict[str, Any]) -> None:
    shown = str(Call(name, (), kwargs, "", 0))
    again = call(shown)
    assert (again.name, again.kwargs) == (name, kwargs)


@pytest.mark.parametrize(("text", "column", "message"), TABLES["mistakes"])
def test_a_mistake_is_shown_where_it_stands(
    text: str, column: int, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        parse(text)
    first, shown, caret = str(error.value).split("\n")
    assert message in first
    assert textwrap.dedent(shown) == text
    assert caret == " " * (4 + column) + "^"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {}')",
        "top_k(keep=__import__('os').system('touch {}'))",
        "(lambda: open('{}', 'w'))()",
        "top_k(keep=[open('{}', 'w') for _ in '1'])",
        "open('{}', 'w')",
        "eval(\"open('{}', 'w')\")",
        "top_k(keep=open('{}', 'w'))",
    ],
)
def test_nothing_is_evaluated(text: str, tmp_path: Any) -> None:
    target = tmp_path / "made"
    with pytest.raises(SpecError):
        make_compressor(text.format(target))
    assert not target.exists()


def test_a_spec_is_a_string() -> None:
    with pytest.raises(SpecError, match="not 3"):
        parse(3)  # pyright: ignore[reportArgumentType]


def test_build_passes_the_arguments() -> None:
    assert build("thing", THINGS, "thing") == (1, None)
    assert build("thing(2, inner='x')", THINGS, "thing") == (2, "x")
    assert build(call("thing(size=3)"), THINGS, "thing") == (3, None)
    assert build("thing(inner=4)", THINGS, "thing", 7) == (7, 4)


STRINGS = [
    (name, parameter.name, parameter.default)
    for name, factory in compressors.REGISTRY.items()
    for parameter in inspect.signature(factory).parameters.values()
    if isinstance(parameter.default, str)
]


@pytest.mark.parametrize(("method", "argument", "default"), STRINGS)
def test_strings_need_no_quotes(method: str, argument: str, default: str) -> None:
    bare = make_compressor(f"{method}({argument}={default})")
    assert bare.name == make_compressor(method).name
    with pytest.raises(SpecError, match="'no_such'"):
        make_compressor(f"{method}({argument}=no_such)")


def test_strings_need_no_quotes_where_numbers_are_valid_too() -> None:
    assert make_compressor("cast(float16)").name == "cast(dtype='float16')"
    ring = gossip.topology("ring", 4)
    bare, quoted = (make_mixer(f"choco(gamma={g})", ring) for g in ("tuned", "'tuned'"))
    assert bare.name == quoted.name


def test_a_spec_stays_one_where_specs_are_taken() -> None:
    assert build("thing(inner=x)", THINGS, "thing")[1].name == "x"
    with pytest.raises(SpecError, match="dtype is one of"):
        make_compressor("cast(float16(3))")


@pytest.mark.parametrize(("text", "message"), TABLES["refused"])
def test_build_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        build(text, THINGS, "thing")
    first, shown, caret = str(error.value).split("\n")
    assert message in first
    assert shown.strip() == text
    assert caret == "    ^"


def test_a_spec_cannot_override_what_is_given() -> None:
    with pytest.raises(SpecError, match="no argument 'size'"):
        build("thing(size=2)", THINGS, "thing", 7)


def test_the_caret_finds_a_name_inside_a_composition() -> None:
    with pytest.raises(SpecError) as error:
        make_compressor("top_k(keep=0.1) | qsdg(levels=7)")
    message, _, caret = str(error.value).split("\n")
    assert "Did you mean 'qsgd'?" in message
    assert caret.index("^") - 4 == len("top_k(keep=0.1) | ")


def test_the_caret_finds_what_cannot_be_composed() -> None:
    with pytest.raises(SpecError) as error:
        make_compressor("top_k | sign | none")
    assert str(error.value).split("\n")[2].index("^") - 4 == len("top_k | ")


def test_suggest_lists_everything_when_nothing_is_close() -> None:
    assert suggest("xyzzy", ["b", "a"]) == "Valid: a, b"
    assert suggest("x", []) == "Valid: (none)"

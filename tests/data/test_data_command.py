"""`jaxcomp data`: exit codes and messages."""

from jaxcomp import data
from jaxcomp.cli import main
from jaxcomp.data import sources, text
from tests.data import archive_makers
from tests.data.archive_makers import pack


def call(*words: str) -> int:
    return main(["data", *words])


def test_prepare_then_list(tmp_path, monkeypatch, capsys):
    toy = archive_makers.mnist()
    monkeypatch.setitem(sources.SOURCES, "mnist", toy.source)
    archive = str(pack(toy.files, tmp_path / "a.zip"))
    root = str(tmp_path / "data")
    words = ("prepare", "mnist", "--archive", archive, "--data-dir", root)

    assert call(*words) == 0
    out = capsys.readouterr().out
    assert "30 training and 10 test images prepared" in out
    assert "checked by: MD5 of every file" in out
    assert call(*words) == 0
    assert "already prepared" in capsys.readouterr().out

    assert call("list", "--data-dir", root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        *data.REGISTRY,
        *text.REGISTRY,
    ]
    assert "built in" in lines[0]
    assert "not prepared" in lines[1]
    assert lines[3].split() == ["mnist", "prepared", f"{root}/mnist.npz"]


def test_errors_are_one_message_and_an_exit_code(tmp_path, capsys):
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"\x1f\x8b nothing")
    for words, message, code in (
        (("prepare", "cifar10", "--archive", str(broken)), "broken.tar.gz", 1),
        (("prepare", "cifar11"), "Did you mean 'cifar10'", 2),
    ):
        assert call(*words, "--data-dir", str(tmp_path / "data")) == code
        captured = capsys.readouterr()
        assert message in captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""
    assert list(tmp_path.iterdir()) == [broken]


def test_built_in_set_needs_no_preparation(capsys):
    assert call("prepare", "digits") == 0
    assert "needs no preparation" in capsys.readouterr().out

"""Downloads against servers of this process only: no outside network."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxcomp.data import DataError, sources
from jaxcomp.data import prepare as download
from jaxcomp.data.prepare import prepare
from tests.data import archive_makers
from tests.data.archive_makers import md5, pack

BODY = bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def fetch(url: str, target: Path, checksum: str, **kw: Any) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    download.fetch(
        url,
        target,
        md5=checksum,
        progress=lambda task, done, total: seen.append((done, total)),
        **kw,
    )
    return seen


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "body").write_bytes(BODY)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            if self.path != "/short":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
            return None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def test_content_and_progress(server, tmp_path):
    seen = fetch(f"{server}/body", tmp_path / "body", md5(BODY))
    assert (tmp_path / "body").read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))


def test_wrong_cut_off_and_absent_content(server, tmp_path):
    with pytest.raises(DataError, match=f"MD5 {md5(BODY)}, expected 123"):
        fetch(f"{server}/body", tmp_path / "body", "123")
    with pytest.raises(DataError, match=r"10 of 1,000 bytes"):
        fetch(f"{server}/short", tmp_path / "body", "123")
    with pytest.raises(DataError, match=r"absent: Not Found|File not found"):
        fetch(f"{server}/absent", tmp_path / "body", "123")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_host_that_falls_silent_is_given_up(tmp_path):
    """After the head of its answer and some of the body."""
    head = b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        over = threading.Event()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(head + b"x" * 10)
                over.wait(10)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(DataError, match="timed out"):
            fetch(url, tmp_path / "x", "123", timeout=0.3)
        over.set()
        thread.join()


def test_unreachable_host_leaves_nothing_and_says_what_to_do(tmp_path):
    url = f"http://127.0.0.1:{closed_port()}/cifar-10-binary.tar.gz"
    source = archive_makers.cifar10().source
    source = source._replace(urls=(url,), md5={"cifar-10-binary.tar.gz": "123"})
    root = tmp_path / "data"
    with pytest.raises(DataError) as error:
        prepare(sources.arrays(source), data_dir=root)
    message = str(error.value)
    assert "refused" in message
    assert f"\n  {url}\n" in message
    assert f"jaxcomp data prepare cifar10 --archive FILE --data-dir {root}" in message
    assert not root.exists()


def test_one_archive_and_four_files_are_prepared_online(server, tmp_path):
    served = tmp_path / "served"
    cifar, mnist = archive_makers.cifar10(), archive_makers.mnist()
    archive = pack(cifar.files, served / "cifar.tar.gz")
    pack(mnist.files, served)
    known = {**cifar.source.md5, "cifar.tar.gz": md5(archive.read_bytes())}
    online = [
        (cifar, cifar.source._replace(urls=(f"{server}/cifar.tar.gz",), md5=known)),
        (
            mnist,
            mnist.source._replace(urls=tuple(f"{server}/{n}" for n in mnist.files)),
        ),
    ]
    for toy, source in online:
        prepare(sources.arrays(source), data_dir=tmp_path / "data")
        dataset = sources.load(source, data_dir=tmp_path / "data")
        assert (dataset.test_images == toy.splits.test_images).all()

"""A headless Chromium that opens a page and tells what happened there."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), None)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--disable-dev-shm-usage"),
    # What a page asks for must not leave this machine, whatever it is.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
_ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
_REQUEST = "Network.requestWillBeSent"
_SECONDS = 120.0  # a machine that has other things to do


class Opened(NamedTuple):
    """A page that was opened."""

    errors: list[str]  # of the console, and exceptions
    requests: list[str]  # addresses


class Browser:
    """Speaks the DevTools protocol with one tab, over two pipes."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest = send, receive, b""
        self._count, self._session = 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; events that come meanwhile are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method}
        message |= {"params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def open(self, page: Path, width: int = 1280, dark: bool = False) -> Opened:
        """Open a file in a window of a width, and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1)
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self._events):
            self._events.append(self._next())
        params = [(e.get("method"), e.get("params", {})) for e in self._events]
        errors = [json.dumps(about) for name, about in params if name in _ERRORS]
        asked = [a["request"]["url"] for name, a in params if name == _REQUEST]
        return Opened(errors, asked)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._receive], [], [], max(0.0, left))
            part = os.read(self._receive, 1 << 16) if ready else b""
            assert part, "chromium does not answer"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with a new profile in a folder; ends it afterwards."""
    assert CHROMIUM
    to_read, send = os.pipe()
    receive, to_write = os.pipe()
    # The pipes have to be the file descriptors 3 and 4 of the browser.
    moved = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    words = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    command = ["bash", "-c", moved, "bash", *words]
    pipes, quiet = (to_read, to_write), subprocess.DEVNULL
    process = subprocess.Popen(
        command, pass_fds=pipes, stdout=quiet, stderr=quiet, start_new_session=True
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(send, receive)
    finally:
        os.close(send)  # the browser ends when nobody can tell it anything
        os.close(receive)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A real browser for tests of pages: headless Chromium, controlled over its DevTools socket.

It offers only what tests need: open a page, run an expression, wait until one is true, and read the page's errors.
"""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_START_S = 120.0
_ANSWER_S = 60.0


class Page:
    """One browser tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._next = 0
        self.complaints: list[str] = []  # errors of scripts, and violations of a policy

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        self._socket.send(json.dumps({"id": self._next, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(timeout=_ANSWER_S))
            if told.get("id") == self._next:
                assert "error" not in told, told["error"]
                result: dict[str, Any] = told["result"]
                return result
            self._hear(told)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, timeout_s: float = 90.0) -> Any:
        """Wait until the expression is true and return its value."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := self.run(expression)):
            assert time.monotonic() < deadline_s, f"{expression}: not within {timeout_s} s; the page is {self.text()}"
            time.sleep(0.05)
        return value

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def click(self, selector: str) -> None:
        """Click at the element's coordinates, so that an element above it would receive the click."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(() => {{const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def phone(self, width: int = 390, height: int = 844) -> None:
        """Emulate a small mobile screen from now on."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def prefer(self, scheme: str) -> None:
        """Set the preferred colour scheme, `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        """Press a letter key, or `Enter`, `Escape` or `ArrowDown`."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def picture(self, *, whole: bool = True) -> bytes:
        """Return a PNG of the page as it is now."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def _hear(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.complaints.append(str(told["params"]["entry"]["text"]))
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["params"]["exceptionDetails"]["exception"].get("description")))


@contextmanager
def browsing(width: int = 1280, height: int = 1600, *, own_authority: bool = False) -> Iterator[Page]:
    """Run a browser with an empty profile, or skip the test. `own_authority` accepts a fleet's own certificate."""
    program = next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        options.append("--disable-background-networking")  # no requests for updates
        options += ["--ignore-certificate-errors"] if own_authority else []
        places = [f"--user-data-dir={profile}", "--remote-debugging-port=0", f"--window-size={width},{height}"]
        process = subprocess.Popen(
            [program, *options, *places, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = _page_url(Path(profile), process)
            with connect(url, max_size=64 * 1024 * 1024, open_timeout=_ANSWER_S) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    page.call(f"{domain}.enable")
                yield page
        finally:
            process.kill()
            process.wait()


def _page_url(profile: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return the DevTools URL of the page. Chromium writes its port into the profile when it listens."""
    deadline_s = time.monotonic() + _START_S
    port_file = profile / "DevToolsActivePort"
    while not (port_file.is_file() and port_file.read_text().count("\n")):
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        assert time.monotonic() < deadline_s, f"the browser did not start within {_START_S} s"
        time.sleep(0.05)
    address = f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}/json/list"
    while True:
        with urlopen(address, timeout=_ANSWER_S) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        if pages:
            assert urlsplit(pages[0]["webSocketDebuggerUrl"]).hostname == "127.0.0.1"
            return str(pages[0]["webSocketDebuggerUrl"])
        assert time.monotonic() < deadline_s, "the browser has no page"
        time.sleep(0.05)

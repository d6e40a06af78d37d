"""A page in headless Chromium, driven through its DevTools protocol over a pair of pipes.

Messages are JSON, each ended by a zero byte; Chromium reads them on descriptor 3 and answers on
descriptor 4. So no driver and no package is needed, only the browser.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0  # seconds

needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="needs chromium"
)


class Page:
    """One tab that shows one file.

    Args:
        path: The file.
        profile: A folder for the browser.
        width, height: Of the window, in pixels.
        features: Media features, as in ``{"prefers-color-scheme": "dark"}``.
        scripts: Whether scripts may run.
    """

    def __init__(
        self,
        path: Path,
        profile: Path,
        width: int = 1200,
        height: int = 900,
        features: dict[str, str] | None = None,
        scripts: bool = True,
    ) -> None:
        assert CHROMIUM is not None, "CI installs Debian's chromium; see .ci/run"
        self.messages: list[str] = []
        self._buffer = b""
        self._count = 0
        self._session = ""
        self._process, self._out, self._in = _start(CHROMIUM, profile)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.resize(width, height)
        media = [{"name": k, "value": v} for k, v in (features or {}).items()]
        self._call("Emulation.setEmulatedMedia", features=media)
        self._call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    # -- what a person does ------------------------------------------------------------------------

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def move(self, x: float, y: float, pressed: bool = False) -> None:
        self._mouse("mouseMoved", x, y, buttons=int(pressed))

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        self._mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self._mouse("mouseReleased", x, y, button="left", clickCount=1)

    def drag(self, points: Sequence[tuple[float, float]]) -> None:
        """Press at the first point, move along the others, release at the last."""
        self.move(*points[0])
        self._mouse("mousePressed", *points[0], button="left", buttons=1, clickCount=1)
        for point in points[1:]:
            self._mouse("mouseMoved", *point, button="left", buttons=1)
        self._mouse("mouseReleased", *points[-1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra
            )

    def choose(self, element: str, value: str) -> None:
        """Give a control a value, as typing or choosing does."""
        self.run(
            f"(e => {{ e.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind)); })"
            f"(document.getElementById({json.dumps(element)}))"
        )

    # -- what a person sees ------------------------------------------------------------------------

    def run(self, expression: str) -> Any:
        """The value of an expression on the page."""
        found = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, element: str) -> str:
        return str(self.run(f"document.getElementById({json.dumps(element)}).textContent"))

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(expression):
            assert time.monotonic() < end, f"{expression} did not come true; {self.messages}"
            time.sleep(0.05)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        content = self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(content))
        return path

    def print(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self._call("Page.printToPDF")["data"])

    # -- the protocol ------------------------------------------------------------------------------

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol."""
        return self._call(method, **parameters)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._remember(answer)

    def _remember(self, event: dict[str, Any]) -> None:
        """What the console says."""
        parameters = event.get("params", {})
        if event["method"] == "Runtime.consoleAPICalled":
            said = [str(one.get("value", one)) for one in parameters["args"]]
            self.messages.append(f"{parameters['type']}: {' '.join(said)}")
        elif event["method"] == "Runtime.exceptionThrown":
            self.messages.append(str(parameters["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            self.messages.append(str(parameters["entry"]["text"]))

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 2**16)
            assert part, "the browser is gone"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found


def _start(browser: str, profile: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """The browser, where to write to it, where to read from it."""
    their_in, out = os.pipe()
    our_in, their_out = os.pipe()
    shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", browser, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    return process, out, our_in

"""A headless Chromium without a network, driven over a pipe by its DevTools protocol.

It is the one that the environment variable CHROMIUM names, or the first of `NAMES` on the PATH.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9",
)  # fmt: skip
# It speaks on file descriptors 3 and 4, which must be free in the process that becomes it.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 120  # seconds for any answer


def find() -> str | None:
    """The browser's path; None where there is none. A CHROMIUM that is no program is a mistake, not a missing browser."""
    asked = os.environ.get("CHROMIUM")
    if asked:
        path = shutil.which(asked)
        if path is None:
            raise RuntimeError(f"CHROMIUM is {asked!r}, which is no program")
        return path
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A process, and the messages to and from it."""

    def __init__(self, path: str, profile: Path):
        to_read, self._out = (_high(fd) for fd in os.pipe())
        self._in, to_write = (_high(fd) for fd in os.pipe())
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        command = [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), path, *flags, "about:blank"]
        with open(profile.with_suffix(".log"), "wb") as log:
            self._process = subprocess.Popen(
                command,
                pass_fds=(to_read, to_write),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        os.close(to_read)
        os.close(to_write)
        self._numbers, self._rest, self.events = itertools.count(1), b"", []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Calls a method, and waits for its result; events that come before it are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + PATIENCE)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 20) if ready else b""
            if not read:
                raise RuntimeError("the browser " + ("ended" if ready else "does not answer"))
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.send("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._in)
        os.close(self._out)


def _high(fd: int) -> int:
    """The same file under a number that is none of a new process's own."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD, 10)
    os.close(fd)
    return high


class Page:
    """A tab."""

    def __init__(
        self, browser: Browser, width: int = 1200, height: int = 900, dark: bool = False, mobile: bool = False
    ):
        self.browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def open(self, path: Path) -> Page:
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.frames(3)  # sizes are observed at the end of the first, and what is drawn anew for them is in the second
        return self

    def frames(self, count: int) -> None:
        """Until so many frames have begun."""
        frame = "await new Promise(requestAnimationFrame)"
        self.evaluate(f"(async () => {{ for (let i = 0; i < {count}; i++) {frame}; }})()")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, a promise's when it is kept."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def center(self, selector: str) -> tuple[float, float]:
        """Scrolls an element into view; where its middle is then."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        x, y = self.center(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        given = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": codes[key], "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **given)
        self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def pdf(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """What events of some kinds this page has had."""
        self.evaluate("0")  # what is on its way comes first
        return [
            e["params"]
            for e in self.browser.events
            if e.get("sessionId") == self.session and e.get("method") in methods
        ]


@contextlib.contextmanager
def opened(path: str, profile: Path) -> Iterator[Browser]:
    browser = Browser(path, profile)
    try:
        yield browser
    finally:
        browser.close()

"""A real browser for tests: Chromium, over the WebDriver protocol of chromedriver."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en",
)  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, by the standard
KEYS = {"left": "\ue012", "right": "\ue014"}


def missing() -> str | None:
    """Why there is no browser, or None."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)} on this machine" if lacking else None


class Browser:
    """One window."""

    def __init__(self, driver: str, profile: str) -> None:
        self._base = driver
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={profile}"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, given: object = None) -> Any:
        data = None if method != "POST" else json.dumps(given or {}).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, url: str, *, leads_to: str | None = None) -> None:
        """Opens a page, and waits until all of it is there, or of the one that it leads to."""
        self._ask("POST", "/url", {"url": url})
        end = json.dumps(leads_to or url)
        self.wait(f"location.href == {end} && document.readyState == 'complete'")

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def wait(self, condition: str) -> None:
        """Waits until an expression is true, however slow the machine is."""
        patience = time.monotonic() + 120
        while True:
            with contextlib.suppress(AssertionError):  # between two pages
                if self.run(f"return Boolean({condition})"):
                    return
            assert time.monotonic() < patience, f"{condition} is not true"
            time.sleep(0.01)

    def click(self, selector: str) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[ELEMENT]}/click")

    def press(self, key: str) -> None:
        """A key, for what has the focus."""
        value = KEYS[key]
        keys = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": keys}]})

    def devtools(self, command: str, **parameters: object) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """The size of the window, and its colours."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.devtools(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self) -> bytes:
        return base64.b64decode(self.devtools("Page.captureScreenshot", format="png")["data"])

    def messages(self) -> list[str]:
        """What the browser complained of: scripts, blocked content, requests that failed."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def messages_with(self, *words: str) -> list[str]:
        """The same, once each word is in one of them: they come later than what they are about."""
        patience, told = time.monotonic() + 120, self.messages()
        while not all(any(word in one for one in told) for word in words):
            assert time.monotonic() < patience, told
            time.sleep(0.01)
            told += self.messages()
        return told

    def close(self) -> None:
        self._ask("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile, for as long as the block takes."""
    profile = tempfile.mkdtemp(prefix="loaderx-browser-")
    driver, port = _driver(Path(profile, "chromedriver.log"))
    try:
        made = Browser(f"http://127.0.0.1:{port}", profile)
        try:
            yield made
        finally:
            made.close()
    finally:
        driver.send_signal(signal.SIGTERM)
        driver.communicate(timeout=60)
        shutil.rmtree(profile, ignore_errors=True)


def _driver(log: Path) -> tuple[subprocess.Popen[str], int]:
    """chromedriver, which takes a free port for IPv4 that may be in use for IPv6: then another."""
    told = ""
    for _ in range(10):
        command = ["chromedriver", "--port=0", f"--log-path={log}"]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        told = ""
        for line in driver.stdout:
            told += line
            if found := re.search(r"successfully on port (\d+)", line):
                return driver, int(found[1])
        driver.communicate()
    raise AssertionError(f"chromedriver does not start: {told}{log.read_text()}")

"""Debian's chromium without a screen, by its DevTools: loads the status page and says what it sees.

    page.py URL SCRIPT

SCRIPT has a line a step; every line's answer is printed, as JSON, on a line of its own. Steps:

    open light|dark [WIDTHxHEIGHT]   loads the page anew
    eval EXPRESSION                  the value of a JavaScript expression
    until SECONDS EXPRESSION         waits until it is true; how long that took, in seconds, or null
    key NAME...                      presses keys: Tab, Enter, Escape ...
    run SHELL                        runs a command beside
    stop                             ends what was run
    picture FILE [HEIGHT]            writes what is to be seen
    errors                           errors and warnings of the console, and exceptions
    requests                         the addresses that were asked for, each once, outside of URL

"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import base64

import websocket

LIMIT = 30


class Browser:
    def __init__(self, folder):
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--user-data-dir=" + folder,
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--disable-gpu", "--hide-scrollbars", "--remote-allow-origins=*", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        address = None
        watchdog = threading.Timer(LIMIT, self.process.kill)  # ends the loop below
        watchdog.start()
        for line in self.process.stderr:
            if line.startswith("DevTools listening on "):
                address = line.split()[-1]
                break
        watchdog.cancel()
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()  # or it would wait for us
        if address is None:
            raise SystemExit(f"chromium has not said where it listens, after {LIMIT} s at most")
        self.socket = websocket.create_connection(address, timeout=LIMIT)
        self.number, self.session = 0, None
        self.errors, self.requests = [], set()
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            got = json.loads(self.socket.recv())
            if got.get("id") == self.number:
                if "error" in got:
                    raise SystemExit(f"{method}: {got['error']}")
                return got["result"]
            self.heard(got)

    def heard(self, event):
        method, of = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = of["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.errors.append(of["entry"]["text"] + " " + of["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in of["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.add(of["request"]["url"])

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            return {"exception": result["exceptionDetails"].get("exception", {}).get("description")}
        return result["result"].get("value")

    def until(self, limit, expression):
        begin = time.monotonic()
        while time.monotonic() - begin < limit:
            if self.evaluate(expression) is True:
                return round(time.monotonic() - begin, 2)
            time.sleep(0.02)
        return None

    def key(self, name):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}
        more = {"text": "\r"} if name == "Enter" else {"text": " "} if name == "Space" else {}
        key = " " if name == "Space" else name
        same = {"key": key, "code": name, "windowsVirtualKeyCode": codes.get(name, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def step(browser, url, line, beside):
    name, _, rest = line.partition(" ")
    words = rest.split()
    if name == "open":
        width, height = (words[1] if len(words) > 1 else "1320x900").split("x")
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": words[0]}])
        browser.call("Emulation.setDeviceMetricsOverride", width=int(width), height=int(height), deviceScaleFactor=1, mobile=False)
        browser.call("Page.navigate", url=url)
        return browser.until(LIMIT, "document.readyState === 'complete'")
    if name == "eval":
        return browser.evaluate(rest)
    if name == "until":
        limit, _, expression = rest.partition(" ")
        return browser.until(float(limit), expression)
    if name == "key":
        for key in words:
            browser.key(key)
        return True
    if name == "run":
        beside.append(subprocess.Popen(rest, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True))
        return True
    if name == "stop":
        for process in beside:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        beside.clear()
        return True
    if name == "picture":
        shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=len(words) > 1 and words[1] == "whole")
        with open(words[0], "wb") as file:
            file.write(base64.b64decode(shot["data"]))
        return True
    if name == "errors":
        return browser.errors
    if name == "requests":
        return sorted(at for at in browser.requests if not at.startswith((url, "data:", "about:")))
    raise SystemExit(f"no such step: {line}")


def main():
    url, script = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, open(script) as steps:
        browser, beside = Browser(folder), []
        try:
            for line in steps.read().splitlines():
                if line and not line.startswith("#"):
                    print(json.dumps(step(browser, url, line, beside)), flush=True)
        finally:
            step(browser, url, "stop", beside)
            browser.end()


main()

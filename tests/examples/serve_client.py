"""A server that is started for a test, and clients of it. Standard library only."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time

PATIENCE = 120  # seconds: for what a loaded machine may take


class Server:
    def __init__(self, program, *arguments, **environment):
        self.process = subprocess.Popen([program, "--port", "0", *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        line = self.process.stdout.readline()
        if not line.startswith("serve: http://127.0.0.1:"):
            raise SystemExit(f"expected an address, got {line!r} {self.process.communicate()}")
        self.port = int(line.strip().rstrip("/").rsplit(":", 1)[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def raw(self, data=b""):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(data)
        return connection

    def ask(self, path, body=None, method=None, headers=None):
        """Status, headers and content, as JSON where it is some. `body` is an object, or bytes as they are."""
        connection = self.connect()
        if body is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
            if not isinstance(body, bytes):
                body = json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.getheader("Content-Type") == "application/json" and content:
            content = json.loads(content)
        return response.status, dict(response.getheaders()), content

    def stream(self, path, body, headers=None):
        """A connection whose answer has begun, and the response."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json", **(headers or {})})
        return connection, connection.getresponse()

    def metric(self, name):
        """The number behind a line of /metrics that begins so."""
        text = self.ask("/metrics")[2].decode()
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"FAILED: waited in vain until {what}")
            time.sleep(0.02)

    def signal(self, which=signal.SIGTERM):
        self.process.send_signal(which)

    def end(self):
        """The exit status; nothing may have been said on standard error."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        if output or errors:
            raise SystemExit(f"FAILED: the server said {output!r} {errors!r}")
        return self.process.returncode


def events(response):
    """The events of a stream to its end, the last one is None for [DONE]."""
    found = []
    for part in response.read().decode().split("\n\n"):
        if part and not part.startswith(":"):
            assert part.startswith("data: "), part
            found.append(None if part == "data: [DONE]" else json.loads(part[6:]))
    return found


def pictures(folder):
    """Rows, columns, pixels from 0 to 1 and labels of the digits that come with the example."""
    with open(folder + "/images-idx3-ubyte", "rb") as file:
        head, data = file.read(16), file.read()
    with open(folder + "/labels-idx1-ubyte", "rb") as file:
        labels = file.read()[8:]
    rows, columns = int.from_bytes(head[8:12], "big"), int.from_bytes(head[12:16], "big")
    size, most = rows * columns, max(data)
    return rows, columns, [[p / most for p in data[i * size:(i + 1) * size]] for i in range(len(labels))], labels

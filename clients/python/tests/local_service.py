"""A service of a few lines on this machine, and tests that see no other."""

import contextlib
import http.server
import json
import os
import threading
import time
from email.utils import formatdate

import pytest

DONE = b'{"stdout":"","stderr":"","exit_code":0,"ok":true,"duration_ms":1,"timed_out":false}'


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append((self.path, self.headers.get("host"), self.headers.get("authorization")))
        status, body = self.server.answer(self)
        self.send_response_only(status)
        self.send_header("date", formatdate(time.time() + self.server.clock_seconds, usegmt=True))
        self.send_header("content-length", str(len(body)))
        self.send_header("x-request-id", "r-1")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def server(answer=lambda _: (200, b"{}"), *, clock_seconds=0, tls=None):
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    made.answer, made.clock_seconds, made.seen = answer, clock_seconds, []
    if tls is not None:
        made.socket = tls.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    made.port = made.server_address[1]
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No setting of this machine, and no service of it."""
    for name in [name for name in os.environ if name.startswith("CLOCHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOCHE_HOME", str(tmp_path))


def sandbox_json(domain, plain=""):
    info = {"id": "sbx-a", "name": "a", "state": "SANDBOX_STATE_RUNNING", "domain": domain}
    info.update(created_at="", updated_at="", source_sandbox_id="")
    return json.dumps({"sandbox": info, "data_plane_token": "jwt", "data_plane_token_expires_at_unix": 2**31, "data_plane_url": plain})

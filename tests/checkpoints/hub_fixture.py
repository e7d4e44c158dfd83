"""A hub of one repository on this machine: its list of files and the files, ranges and broken connections included."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "abcd"


@dataclass
class Hub:
    """files: by name. cut: names whose answers break off after that many bytes. asked: what was asked for, with its
    range. ranges: whether a range is answered as one. lies: names whose SHA-256 is another's."""

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    lies: set[str] = field(default_factory=set)
    endpoint: str = ""

    def described(self) -> dict[str, object]:
        siblings = []
        for name, raw in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(raw), "blobId": hashlib.sha1(raw).hexdigest()}
            if name.endswith((".safetensors", ".bin")):
                sha256 = hashlib.sha256(b"another" if name in self.lies else raw).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(raw), "pointerSize": 130}
            siblings.append(entry)
        return {"id": "owner/name", "modelId": "owner/name", "sha": COMMIT, "siblings": siblings, "tags": []}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, listening on 127.0.0.1 at `hub.endpoint`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path.startswith("/api/models/owner/name"):
                wanted = path.removeprefix("/api/models/owner/name")
                known = wanted in ("", "/revision/main", "/revision/v1", f"/revision/{COMMIT}")
                body = json.dumps(hub.described() if known else {"error": "Revision not found"}).encode()
                self._answer(200 if known else 404, body, {} if known else {"X-Error-Code": "RevisionNotFound"})
                return
            start = f"/owner/name/resolve/{COMMIT}/"
            name = path.removeprefix(start)
            if not path.startswith(start) or name not in hub.files:
                code = "EntryNotFound" if path.startswith(start) else "RepoNotFound"
                self._answer(404, b"{}", {"X-Error-Code": code})
                return
            self._file(name)

        def _file(self, name: str) -> None:
            asked = self.headers.get("Range")
            hub.asked.append((name, asked))
            begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and hub.ranges else 0
            body = hub.files[name][begin:]
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name in hub.cut:
                self.wfile.write(body[: hub.cut[name]])
                self.close_connection = True
            else:
                self.wfile.write(body)

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()

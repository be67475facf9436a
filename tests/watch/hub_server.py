"""A small server that answers huggingface_hub from folders, with failures on demand."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TOKEN = "hf_averysecrettoken"


class HubServer:
    """`revisions` has folders by name; files come from a second port, as from another host.

    `faults` are taken one per request for a file: "drop" breaks the connection in the middle, "short" sends
    half, "limit" says to wait, "missing" denies the file. `asked` has each request: path, range, and whether
    it had a token.
    """

    def __init__(self, repository, revisions, private=False):
        self.repository, self.revisions, self.private = repository, revisions, private
        self.commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in revisions}
        self.faults, self.asked, self.sent = [], [], 0
        self.front, self.store = self._serve(self._answer), self._serve(self._send_file)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.front.server_port}"

    def close(self):
        for server in (self.front, self.store):
            server.shutdown()
            server.server_close()

    def _serve(self, answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def _answer(self, request):
        path = urlsplit(request.path).path
        token = request.headers.get("authorization") == f"Bearer {TOKEN}"
        self.asked.append((path, request.headers.get("range"), token))
        api = f"/api/models/{self.repository}"
        if self.private and not token:
            _reply(request, 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif path == f"{api}/refs":
            if self.faults[:1] == ["busy"]:
                self.faults.pop(0)
                _reply(request, 503, {"error": "busy"}, {"Retry-After": "0"})
                return
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
                for name, commit in self.commits.items()
            ]
            _reply(request, 200, {"branches": branches, "tags": [], "converts": []})
        elif found := re.fullmatch(rf"{api}/revision/(\w+)", path):
            files = self._folder(found[1]).iterdir()
            siblings = [{"rfilename": file.name, "size": file.stat().st_size} for file in files]
            _reply(request, 200, {"id": self.repository, "sha": found[1], "siblings": siblings})
        elif found := re.fullmatch(rf"/{self.repository}/resolve/(\w+)/(.+)", path):
            target = f"http://127.0.0.1:{self.store.server_port}/{found[1]}/{found[2]}?signature=signed"
            _reply(request, 302, {}, {"Location": target})
        else:
            _reply(request, 404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, request):
        assert "authorization" not in request.headers, "the token went to another host"
        _, commit, name = urlsplit(request.path).path.split("/")
        fault = self.faults.pop(0) if self.faults else ""
        if fault in ("limit", "missing"):
            status = {"limit": 429, "missing": 404}[fault]
            _reply(request, status, {"error": fault}, {"Retry-After": "0", "X-Error-Code": "EntryNotFound"})
            return
        data = (self._folder(commit) / name).read_bytes()
        begin, end = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["range"]).groups())
        part = data[begin : end + 1]
        if fault == "short":
            part = part[: len(part) // 2]
        self.sent += len(part)
        request.send_response(206)
        request.send_header("Content-Length", str(len(part)))
        request.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")
        request.end_headers()
        if fault == "drop":
            request.wfile.write(part[: len(part) // 2])
            request.wfile.flush()
            request.close_connection = True
            return
        request.wfile.write(part)

    def _folder(self, commit):
        return next(self.revisions[name] for name, one in self.commits.items() if one == commit)


def _reply(request, status, body, headers=()):
    data = json.dumps(body).encode()
    request.send_response(status)
    for name, value in dict(headers).items():
        request.send_header(name, value)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)

"""A small server that answers huggingface_hub from folders, with failures on demand."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class HubServer:
    """`revisions` has folders by name. `faults` are taken one per download: "limit" says to wait, "missing"
    denies the file."""

    def __init__(self, repository, revisions):
        self.repository, self.revisions = repository, revisions
        self.commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in revisions}
        self.faults = []
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request):
        path, api = urlsplit(request.path).path, f"/api/models/{self.repository}"
        if path == f"{api}/refs":
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
                for name, commit in self.commits.items()
            ]
            _reply(request, 200, json.dumps({"branches": branches, "tags": [], "converts": []}).encode())
        elif found := re.fullmatch(rf"{api}/revision/(\w+)", path):
            files = self._folder(found[1]).iterdir()
            siblings = [{"rfilename": file.name, "size": file.stat().st_size} for file in files]
            about = {"id": self.repository, "sha": found[1], "siblings": siblings}
            _reply(request, 200, json.dumps(about).encode())
        elif found := re.fullmatch(rf"/{self.repository}/resolve/(\w+)/(.+)", path):
            self._send(request, found[1], self._folder(found[1]) / found[2])
        else:
            _reply(request, 404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send(self, request, commit, path):
        download = request.command == "GET"
        fault = self.faults.pop(0) if download and self.faults else ""
        if fault in ("limit", "missing"):
            status = {"limit": 429, "missing": 404}[fault]
            _reply(request, status, b"", {"Retry-After": "0", "X-Error-Code": "EntryNotFound"})
            return
        data = path.read_bytes()
        about = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit}
        _reply(request, 200, data, about)

    def _folder(self, commit):
        return next(self.revisions[name] for name, one in self.commits.items() if one == commit)


def _reply(request, status, body, headers=()):
    request.send_response(status)
    for name, value in dict(headers).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(body)
    request.close_connection = True

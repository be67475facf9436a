"""Read revisions of a model on the Hugging Face Hub, fetching only the tensors that are measured.

A safetensors file begins with a table of its tensors' places, so one small request finds them and requests
for ranges of bytes fetch them. Pickled files are fetched whole. Endpoint and token are huggingface_hub's.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.record.folder import CONFIG, WHOLE
from rankrise.watch._checkpoint import Checkpoint, StoredTensor, Wanted, without_wrappers

# Bytes of the first request for a file: enough for most tables.
TABLE = 2**17
# Bytes per request, and the largest gap between two tensors that are fetched together.
PART = 2**26
GAP = 2**18
RETRIED = (408, 429, 500, 502, 503, 504)
# Seconds between attempts if the Hub does not say how long to wait.
WAITS = (1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT = 300.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class HubRevision:
    """One revision of a model."""

    repository: str
    name: str
    commit: str

    def __str__(self) -> str:
        return f"{self.repository} at {self.name}"

    def key(self) -> str:
        return f"commit:{self.commit}"

    def header(self) -> Checkpoint:
        """Names, shapes and sizes of the tensors."""
        if self._pickled:
            raise RankriseError(f"{self} is pickled: download it whole, and pass the folder.")
        tensors = {}
        for file, (_, table) in self._tables.items():
            for name, one in table.items():
                begin, end = one["data_offsets"]
                tensors[name] = StoredTensor(tuple(one["shape"]), end - begin, Path(file), name)
        return Checkpoint(Path(), without_wrappers(tensors))

    def config(self, into: Path) -> Path | None:
        if CONFIG not in self._files:
            return None
        self._fetch_whole(CONFIG, into / CONFIG)
        return into / CONFIG

    def size(self, wanted: Wanted) -> int:
        if self._pickled:
            return sum(self._files[file] for file in self._weights)
        header = self.header()
        return sum(header.tensors[name].size for name in wanted(header))

    def fetch(self, wanted: Wanted, into: Path) -> Checkpoint:
        """Fetch the wanted tensors, each file's as a safetensors file of their own."""
        if self._pickled:
            for file in self._weights:
                self._fetch_whole(file, into / file)
            return Checkpoint.open(into)
        header = self.header()
        names: dict[str, list[str]] = {}
        for name in wanted(header):
            stored = header.tensors[name]
            names.setdefault(stored.file.name, []).append(stored.name)
        for file, inside in names.items():
            start, table = self._tables[file]
            entries, ranges, offset = {}, [], 0
            for name in sorted(inside, key=lambda name: table[name]["data_offsets"]):
                begin, end = table[name]["data_offsets"]
                entries[name] = table[name] | {"data_offsets": [offset, offset + end - begin]}
                ranges.append((start + begin, start + end))
                offset += end - begin
            text = json.dumps(entries).encode()
            text += b" " * (-len(text) % 8)
            with (into / file).open("wb") as out:
                out.write(len(text).to_bytes(8, "little") + text)
                for begin, end, parts in _requests(ranges):
                    data = memoryview(self._bytes(file, begin, end))
                    for part_begin, part_end in parts:
                        out.write(data[part_begin - begin : part_end - begin])
        return Checkpoint.open(into)

    @cached_property
    def _files(self) -> dict[str, int]:
        """Names and sizes of the files at the top of the revision."""
        ask = partial(_hub().HfApi().model_info, self.repository, revision=self.commit, files_metadata=True)
        found = _ask(str(self), ask)
        return {one.rfilename: one.size or 0 for one in found.siblings or () if "/" not in one.rfilename}

    @cached_property
    def _weights(self) -> list[str]:
        """The files that hold the tensors."""
        for whole in WHOLE:
            if whole in self._files:
                return [whole]
            index = f"{whole}.index.json"
            if index in self._files:
                places = json.loads(self._bytes(index, 0, self._files[index]))["weight_map"]
                return sorted(set(places.values()))
        raise RankriseError(f"{self} has neither {' nor '.join(WHOLE)}: leave it out, by a pattern of steps.")

    @property
    def _pickled(self) -> bool:
        return not self._weights[0].endswith(".safetensors")

    @cached_property
    def _tables(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """By file, where its data begin and its table of tensors: dtype, shape and data_offsets by name."""
        tables = {}
        for file in self._weights:
            first = self._bytes(file, 0, min(TABLE, self._files[file]))
            start = 8 + int.from_bytes(first[:8], "little")
            more = b"" if start <= len(first) else self._bytes(file, len(first), start)
            table = json.loads((first + more)[8:start])
            table.pop("__metadata__", None)
            tables[file] = start, table
        return tables

    def _fetch_whole(self, file: str, path: Path) -> None:
        with path.open("wb") as out:
            for begin in range(0, self._files[file], PART):
                out.write(self._bytes(file, begin, min(begin + PART, self._files[file])))

    def _bytes(self, file: str, begin: int, end: int) -> bytes:
        hub = _hub()
        url = hub.hf_hub_url(self.repository, file, revision=self.commit)
        headers = hub.utils.build_hf_headers() | {"Range": f"bytes={begin}-{end - 1}"}

        def get() -> bytes:
            session, timeout = hub.utils.get_session(), hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
            response = session.get(url, headers=headers, timeout=timeout)
            hub.utils.hf_raise_for_status(response)
            data: bytes = response.content
            if response.status_code == 200:  # the server knows no ranges and sent the whole file
                data = data[begin:end]
            if len(data) != end - begin:
                raise EOFError(f"{len(data)} bytes came in place of {end - begin}")
            return data

        return _ask(f"{file} of {self}", get)


def hub_revisions(repository: str) -> list[HubRevision]:
    """The branches and tags of a model; a branch hides a tag of its name."""
    ask = partial(_hub().HfApi().list_repo_refs, repository)
    refs = _ask(f"{repository}, which is not a folder here,", ask)
    commits = {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}
    return [HubRevision(repository, name, commit) for name, commit in commits.items()]


def _requests(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Ranges to ask for, each with its wanted parts: neighbours together, large ones split."""
    pieces = [(one, min(one + PART, end)) for begin, end in ranges for one in range(begin, end, PART)]
    parts: list[tuple[int, int]] = []
    for begin, end in pieces:
        if parts and (begin - parts[-1][1] > GAP or end - parts[0][0] > PART):
            yield parts[0][0], parts[-1][1], parts
            parts = []
        parts.append((begin, end))
    if parts:
        yield parts[0][0], parts[-1][1], parts


def _ask(what: str, ask: Callable[[], Answer]) -> Answer:
    """Ask the Hub, again if the connection drops or the Hub is busy. The library's own error may show signed
    addresses, so it is not chained."""
    for wait in (*WAITS, None):
        try:
            return ask()
        except Exception as error:
            kind, response = type(error).__name__, getattr(error, "response", None)
            status = getattr(response, "status_code", None)
            if wait is None or status not in (None, *RETRIED):
                break
            asked = "" if response is None else response.headers.get("retry-after", "")
            time.sleep(min(float(asked), LONGEST_WAIT) if asked.isdecimal() else wait)
    answer = f"{kind}, status {status}" if status else kind
    raise RankriseError(
        f"{what} could not be fetched from the Hugging Face Hub ({answer}): check its name, log in with "
        "'hf auth login' if it is private or gated, or try again later."
    )


def _hub() -> Any:
    return require("huggingface_hub", extra="transformers", purpose="Reading from the Hugging Face Hub")

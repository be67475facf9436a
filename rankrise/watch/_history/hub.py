"""Revisions of a model on the Hugging Face Hub: of each, only the tensors that are measured are fetched.

Safetensors begin with a table of what is where, so that one small request tells the places of the tensors,
and requests for ranges of bytes bring them. A pickled file is fetched whole. All requests go through
`huggingface_hub`: its endpoint (HF_ENDPOINT), its token, its waiting when the Hub asks for it. Nothing of a
token or of an address that was redirected to is kept or shown.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.record.names import CONFIG
from rankrise.record.weight_folders import WHOLE
from rankrise.watch._checkpoint import Checkpoint, Form, Home, Wanted, form_of
from rankrise.watch._history.folders import meant, refuse_adapter

# Bytes of the first request for a file: enough for the table of most.
TABLE = 2**17
# Bytes per request, and the most that lie between two tensors that come with one.
PART = 2**26
GAP = 2**18
# The table of a file that is larger than this is not one.
LARGEST_TABLE = 100 * 2**20
RETRIED = (408, 429, 500, 502, 503, 504)
# Seconds between requests where the Hub does not say how long to wait.
WAITS = (1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT = 300.0
"""Seconds, where it does."""

LATER = "run the same command again later: it goes on where it stopped"


class NotFetched(RankriseError):
    """The Hub, or the way to it, refused."""


@dataclass(frozen=True)
class StoredTensor:
    """Where the bytes of a tensor are in a safetensors file."""

    dtype: str
    form: Form
    begin: int
    end: int


@dataclass(frozen=True)
class HubRevision:
    """One revision of a model."""

    repository: str
    name: str
    commit: str

    def key(self) -> str:
        return f"commit:{self.commit}"

    def header(self) -> Checkpoint:
        for file in self._weights:
            if not file.endswith(".safetensors"):
                raise RankriseError(
                    f"{self.repository} at {self.name} is pickled and has no config.json, so its names are "
                    "not known before it is fetched: download it whole, and pass the folders."
                )
        forms: dict[str, Form] = {}
        homes: dict[str, Home] = {}
        for file, table in self._tables.items():
            for name, place in table.items():
                forms[name], homes[name] = place.form, (Path(file), name)
        return Checkpoint.of(Path(), forms, homes)

    def size(self, wanted: Wanted) -> int:
        if self._pickled:
            return sum(self._files[file] for file in self._weights)
        header = self.header()
        return sum(header.size(name) for name in wanted(header))

    def config(self, into: Path) -> Path | None:
        if CONFIG not in self._files:
            return None
        path = into / CONFIG
        path.write_bytes(self._bytes(CONFIG, 0, self._files[CONFIG]))
        return path

    def fetch(self, wanted: Wanted, into: Path) -> Checkpoint:
        refuse_adapter(self.name, self._files)
        if self._pickled:
            for file in self._weights:
                self._fetch_whole(file, into / file)
            return Checkpoint.open(into)
        header = self.header()
        names: dict[Path, list[str]] = {}
        for name in wanted(header):
            shard, stored = header.home(name)
            names.setdefault(shard, []).append(stored)
        for shard, inside in names.items():
            self._fetch_tensors(shard.name, inside, into / shard.name)
        return Checkpoint.open(into)

    @property
    def _pickled(self) -> bool:
        return not self._weights[0].endswith(".safetensors")

    @cached_property
    def _files(self) -> dict[str, int]:
        """Names and sizes of the files at the top of the revision."""
        api = _hub().HfApi()
        found = _patiently(
            f"{self.repository} at {self.name}",
            lambda: api.model_info(self.repository, revision=self.commit, files_metadata=True),
        )
        return {one.rfilename: one.size or 0 for one in found.siblings or () if "/" not in one.rfilename}

    @cached_property
    def _weights(self) -> list[str]:
        """The files that hold the tensors."""
        for whole in WHOLE:
            if whole in self._files:
                return [whole]
            index = f"{whole}.index.json"
            if index in self._files:
                with self._whole(index):
                    described = json.loads(self._bytes(index, 0, self._files[index]))
                    shards = sorted(set(described["weight_map"].values()))
                missing = [shard for shard in shards if shard not in self._files]
                if missing:
                    raise RankriseError(
                        f"{self.repository} at {self.name} names {missing[0]!r} in {index}, which is not "
                        "beside it: leave this revision out."
                    )
                return shards
        raise RankriseError(
            f"{self.repository} at {self.name} has neither {' nor '.join(WHOLE)}: leave "
            "this revision out, with a pattern for the steps."
        )

    @cached_property
    def _tables(self) -> dict[str, dict[str, StoredTensor]]:
        """Where the tensors of each file are."""
        return {file: self._table(file) for file in self._weights}

    def _table(self, file: str) -> dict[str, StoredTensor]:
        first = self._bytes(file, 0, min(TABLE, self._files[file]))
        length = int.from_bytes(first[:8], "little")
        start = 8 + length
        with self._whole(file):
            if not 0 < length <= min(LARGEST_TABLE, self._files[file] - 8):
                raise ValueError("it does not begin as safetensors do")
            text = first[8:start]
            if len(text) < length:
                text += self._bytes(file, len(first), start)
            table: dict[str, Any] = json.loads(text)
            table.pop("__metadata__", None)
            found = {
                name: StoredTensor(
                    one["dtype"],
                    form_of(one["shape"], one["dtype"]),
                    *(start + offset for offset in one["data_offsets"]),
                )
                for name, one in table.items()
            }
            if any(not start <= one.begin <= one.end <= self._files[file] for one in found.values()):
                raise ValueError("it names bytes that it does not have")
        return found

    @contextmanager
    def _whole(self, file: str) -> Iterator[None]:
        """One sentence for a file that does not hold what its name says."""
        try:
            yield
        except RankriseError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RankriseError(
                f"{file} of {self.repository} at {self.name} is damaged ({error}): leave this revision out."
            ) from error

    def _fetch_tensors(self, file: str, names: Sequence[str], path: Path) -> None:
        """Write the tensors of those names as a safetensors file of their own."""
        table = self._tables[file]
        places = sorted((table[name].begin, name) for name in names)
        entries: dict[str, Any] = {}
        offset = 0
        for _, name in places:
            place = table[name]
            size = place.end - place.begin
            entries[name] = {
                "dtype": place.dtype,
                "shape": place.form.shape,
                "data_offsets": [offset, offset + size],
            }
            offset += size
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for begin, end, parts in _requests([table[name] for _, name in places]):
                data = memoryview(self._bytes(file, begin, end))
                for part_begin, part_end in parts:
                    out.write(data[part_begin - begin : part_end - begin])

    def _fetch_whole(self, file: str, path: Path) -> None:
        with path.open("wb") as out:
            for begin in range(0, self._files[file], PART):
                out.write(self._bytes(file, begin, min(begin + PART, self._files[file])))

    def _bytes(self, file: str, begin: int, end: int) -> bytes:
        """Those bytes of a file; asked for again where the connection drops or the Hub says to wait."""
        if begin == end:
            return b""
        hub = _hub()
        url = hub.hf_hub_url(self.repository, file, revision=self.commit)
        headers = hub.utils.build_hf_headers() | {"Range": f"bytes={begin}-{end - 1}"}
        with _asking(f"{file} of {self.repository} at {self.name}"):
            response = hub.utils.http_backoff(
                "GET", url, headers=headers, follow_redirects=True, retry_on_status_codes=RETRIED
            )
            hub.utils.hf_raise_for_status(response)
        data: bytes = response.content
        if response.status_code == 200 and len(data) > end - begin:  # ranges are not known there
            data = data[begin:end]
        if len(data) != end - begin:
            raise NotFetched(
                f"{file} of {self.repository} at {self.name} came with {len(data)} bytes in place of "
                f"{end - begin}: run the same command again."
            )
        return data


def is_hub_name(text: str) -> bool:
    """Whether a text may name a model on the Hub: OWNER/NAME.

    >>> is_hub_name("EleutherAI/pythia-160m"), is_hub_name("runs/a/b"), is_hub_name("./runs")
    (True, False, False)
    """
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None


def hub_revisions(repository: str) -> list[HubRevision]:
    """The branches and tags of a model; of a name that is both, the branch."""
    what = f"{repository}, which is not a folder here{meant(Path(repository))},"
    advice = "pass another path if a folder was meant; otherwise run the same command again later"
    refs = _patiently(what, lambda: _hub().HfApi().list_repo_refs(repository), advice)
    commits = {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}
    return [HubRevision(repository, name, commit) for name, commit in commits.items()]


def _requests(places: Sequence[StoredTensor]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Ranges to ask for, each with the parts of it that are wanted: neighbours together, large ones in parts.

    >>> none = Form((), 0)
    >>> ranges = (0, 10), (12, 20), (10**7, 10**7 + 4)
    >>> list(_requests([StoredTensor("F32", none, *one) for one in ranges]))
    [(0, 20, [(0, 10), (12, 20)]), (10000000, 10000004, [(10000000, 10000004)])]
    """
    begin = end = -1
    parts: list[tuple[int, int]] = []
    for place in places:
        for start in range(place.begin, place.end, PART):
            stop = min(start + PART, place.end)
            if parts and (start - end > GAP or stop - begin > PART):
                yield begin, end, parts
                parts = []
            begin, end = begin if parts else start, stop
            parts.append((start, stop))
    if parts:
        yield begin, end, parts


def _patiently(what: str, ask: Callable[[], Any], advice: str = LATER) -> Any:
    """An answer of the Hub's interface, asked for again where it is busy: the library does so for files
    alone."""
    with _asking(what, advice):
        for wait in (*WAITS, None):
            try:
                return ask()
            except Exception as error:
                response = getattr(error, "response", None)
                if wait is None or (response is not None and response.status_code not in RETRIED):
                    raise
                asked = "" if response is None else response.headers.get("retry-after", "")
                time.sleep(min(float(asked), LONGEST_WAIT) if asked.isdecimal() else wait)


@contextmanager
def _asking(what: str, otherwise: str = LATER) -> Iterator[None]:
    """One sentence for whatever the Hub or the way to it refuses; the library's own text may show addresses
    that are signed, and stays out."""
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = {
            "GatedRepoError": "ask for access on its page, and log in with 'hf auth login'",
            "RepositoryNotFoundError": "check its name, and if it is private log in with 'hf auth login'",
            "RevisionNotFoundError": "check the revision",
            "RemoteEntryNotFoundError": "leave this revision out",
            "EntryNotFoundError": "leave this revision out",
        }.get(kind, otherwise)
        told = f"{kind}, status {status}" if status else kind
        raise NotFetched(
            f"{what} could not be fetched from the Hugging Face Hub ({told}): {advice}."
        ) from None


def _hub() -> Any:
    return require("huggingface_hub", extra="transformers", purpose="Reading from the Hugging Face Hub")

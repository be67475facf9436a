"""Checkpoints that are revisions of a model on the Hugging Face Hub, fetched by huggingface_hub, whole."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.record.folder import CONFIG, WHOLE

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

    def config(self, into: Path) -> Path | None:
        return self._download(CONFIG, into) if CONFIG in self._files else None

    @property
    def size(self) -> int:
        """Bytes of the files with weights."""
        return sum(self._files[file] for file in self._weights)

    def fetch(self, into: Path) -> Path:
        """Download the files with weights into a folder."""
        for file in self._weights:
            self._download(file, into)
        return into

    @cached_property
    def _files(self) -> dict[str, int]:
        """Names and sizes of all files."""
        info = partial(_hub().HfApi().model_info, self.repository, revision=self.commit, files_metadata=True)
        return {one.rfilename: one.size or 0 for one in _ask(str(self), info).siblings or ()}

    @property
    def _weights(self) -> list[str]:
        """The files that hold the weights, chosen as transformers chooses them."""
        for whole in WHOLE:
            stem, suffix = whole.split(".")
            found = [file for file in self._files if fnmatchcase(file, f"{stem}*.{suffix}*")]
            if found:
                return [whole] if whole in found else found
        raise RankriseError(f"{self} has neither {' nor '.join(WHOLE)}: leave it out, by a pattern of steps.")

    def _download(self, file: str, into: Path) -> Path:
        download = partial(_hub().hf_hub_download, self.repository, file, revision=self.commit)
        return Path(_ask(f"{file} of {self}", partial(download, local_dir=into)))


def hub_revisions(repository: str) -> list[HubRevision]:
    """The branches and tags of a model; a branch hides a tag of its name."""
    api = _hub().HfApi()
    refs = _ask(f"{repository}, which is not a folder here,", lambda: api.list_repo_refs(repository))
    commits = {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}
    return [HubRevision(repository, name, commit) for name, commit in commits.items()]


def _ask(what: str, ask: Callable[[], Answer]) -> Answer:
    """Ask the Hub. The library's own error may show signed addresses, so it is not chained."""
    try:
        return ask()
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        answer = f"{type(error).__name__}, status {status}" if status else type(error).__name__
    raise RankriseError(
        f"{what} could not be fetched from the Hugging Face Hub ({answer}): check its name, log in with "
        "'hf auth login' if it is private or gated, or try again later."
    )


def _hub() -> Any:
    return require("huggingface_hub", extra="transformers", purpose="Reading from the Hugging Face Hub")

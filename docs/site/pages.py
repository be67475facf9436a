"""README, CONTRIBUTING and CHANGELOG are pages too, and links out of docs/ lead to the repository."""

import re
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/rankrise/rankrise/blob/main/"
PICTURES = "https://raw.githubusercontent.com/rankrise/rankrise/main/"  # absolute, for the page on PyPI
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie beside docs/."""
    for name, page in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace(PICTURES, "")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Makes every link, written as the repository needs it, lead to where the site has its target."""
    uri = page.file.src_uri
    written_in = ROOT if uri in BESIDE.values() else (DOCS / uri).parent

    def link(found: re.Match[str]) -> str:
        target = Path(normpath(written_in / found[1]))
        inside = BESIDE.get(str(target.relative_to(ROOT)))
        if target.is_relative_to(DOCS) or inside:
            address = relpath(DOCS / inside if inside else target, (DOCS / uri).parent)
        elif target.exists():
            address = REPOSITORY + str(target.relative_to(ROOT))
        else:
            raise PluginError(f"{uri} links to {found[1]}, which does not exist.")
        return f"]({address}{found[2] or ''})"

    return LINK.sub(link, markdown)

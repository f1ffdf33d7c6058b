"""What mkdocs does not do by itself: pages outside of docs/, links between all of them, formulas without a network."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Documents of the repository that are pages too, by the same path; README.md is the first page.
PLACES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "examples/README.md")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's own documents and the pictures of its results."""
    found = [ROOT / name for name in PLACES if (ROOT / name).is_file()]
    found += [path for kind in ("md", "png") for path in sorted((ROOT / "results").rglob(f"*.{kind}"))]
    for path in found:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_bytes()))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turn links of the repository into links of the site; what is no page there becomes plain text."""
    here = _in_repository(page.file.src_uri)
    linked = _LINK.sub(lambda match: _linked(match, here, page.file.src_uri, files), markdown)
    return _formulas(linked)


def _in_repository(uri: str) -> str:
    """Say which file of the repository a page is made from."""
    if uri == "index.md":
        return "README.md"
    return uri if uri.startswith("results/") or uri in PLACES else f"docs/{uri}"


def _in_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _linked(match: re.Match[str], here: str, uri: str, files: Files) -> str:
    picture, text, target, anchor = match[1], match[2], match[3], match[4] or ""
    if "://" in target or not target:
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    for name in (_in_site(path), _in_site(f"{path}/README.md")):
        if files.get_file_from_path(name) is not None:
            return f"{picture}[{text}]({posixpath.relpath(name, posixpath.dirname(uri) or '.')}{anchor})"
    return text if text.startswith("`") else f"`{path}`" if text == path else text


def _formulas(markdown: str) -> str:
    """Write formulas as MathML, which browsers draw by themselves; code is left as it is."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.DOTALL)
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"\$\$(.+?)\$\$", lambda m: convert(m[1].strip(), display="block"), parts[k], flags=re.DOTALL)
        parts[k] = re.sub(r"\$(?!\s)([^$\n]+?)(?<!\s)\$", lambda m: convert(m[1]), parts[k])
    return "".join(parts)

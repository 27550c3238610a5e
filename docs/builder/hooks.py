"""What `mkdocs` does besides: pages made from the package and from files above docs/, and mathematics as MathML."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from docs.builder import commands, gallery, reference  # noqa: E402

INCLUDED = {
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Files of the repository that are pages too, and where they lie on the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in INCLUDED.items()}
    made |= reference.pages() | {"reference/commands.md": commands.page(), "gallery.md": gallery.page()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    for path in gallery.files():
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they work in the repository become those of the site."""
    for source, target in {**INCLUDED, "README.md": "index.md"}.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{re.escape(source)}(?=[)#])", f"]({target}", markdown)
    return re.sub(r"\]\(docs/", "](", markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """TeX becomes MathML, which browsers draw by themselves: no script, no font, nothing to fetch."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda found: _mathml(found[1], "inline"), html)
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>',
        lambda found: _mathml(found[1], "block"),
        html,
        flags=re.DOTALL,
    )


def _mathml(tex: str, display: str) -> str:
    return convert(unescape(tex).strip(), display=display)

"""``python -m docs.builder.links SITE``: find dead links within a built site, and anything that it would fetch from elsewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
FETCHED = {"link", "script", "img", "iframe", "source"}
"""What a browser loads without being asked."""


class Page(HTMLParser):
    """The links of a page, and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := given.get(name))}
        target = given.get(LINKS.get(tag, ""))
        if target and given.get("rel") != "canonical":
            self.links.append((tag, target))


def problems(site: Path) -> list[str]:
    """Every dead internal link and every resource from elsewhere, as ``page: link``."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for tag, link in page.links:
            reason = (
                _outside(tag, link)
                if urlsplit(link).scheme or link.startswith("//")
                else _dead(path, link, site, pages)
            )
            if reason:
                found.append(f"{path.relative_to(site.resolve())}: {link}: {reason}")
    return found


def _outside(tag: str, link: str) -> str:
    fetched = tag in FETCHED and urlsplit(link).scheme not in ("data", "mailto")
    return "would be fetched from elsewhere" if fetched else ""


def _dead(path: Path, link: str, site: Path, pages: dict[Path, Page]) -> str:
    parts = urlsplit(link)
    start = site.resolve() if parts.path.startswith("/") else path.parent
    target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return "no such file"
    fragment = unquote(parts.fragment)
    missing = fragment and target in pages and fragment not in pages[target].places
    return "no such place on that page" if missing else ""


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").exists():
        sys.exit(f"{site}: holds no site; make docs builds one")
    if dead := problems(site):
        sys.exit("\n".join(dead))
    print(f"{len(list(site.rglob('*.html')))} pages, no dead link, nothing from elsewhere")

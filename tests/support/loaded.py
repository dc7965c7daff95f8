"""What a browser loads by itself when it shows a page or uses a stylesheet."""

from __future__ import annotations

import re
from html.parser import HTMLParser

LOADING = {"src", "srcset", "poster", "data", "background"}
HINTS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
"""Relations of a link that make a browser load it, or reach its host."""
_IN_STYLES = re.compile(r"(?:@import\s+(?:url\(\s*)?|url\(\s*)[\"']?([^\s\"')]+)", re.IGNORECASE)
_FOREIGN = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._styles = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self._styles = tag == "style"
        self.found += [value for name, value in named.items() if name in LOADING and value]
        self.found += list_of_sheet(named.get("style", ""))
        relations = set(named.get("rel", "").lower().replace("shortcut", "").split())
        if tag == "link" and relations & HINTS:
            self.found.append(named.get("href", ""))

    def handle_data(self, data: str) -> None:
        if self._styles:
            self.found += list_of_sheet(data)

    def handle_endtag(self, tag: str) -> None:
        self._styles = False


def list_of_page(html: str) -> list[str]:
    """Return the addresses that a page loads."""
    parser = _Loads()
    parser.feed(html)
    parser.close()
    return parser.found


def list_of_sheet(css: str) -> list[str]:
    """Return the addresses that a stylesheet loads."""
    return _IN_STYLES.findall(css)


def list_foreign(addresses: list[str]) -> list[str]:
    """Return those that name a host. What a `srcset` has stands in one text."""
    others = [one for one in addresses if not one.startswith("data:")]
    return [one for one in others if any(_FOREIGN.match(part) for part in one.replace(",", " ").split())]

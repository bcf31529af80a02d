"""The words of a page that came in place of an API's answer, such as that of a proxy."""

from __future__ import annotations

import re
from html.parser import HTMLParser

LENGTH = 200
"""Characters that are shown."""


def is_page(data: bytes) -> bool:
    """Whether this is HTML; its content type is not asked, as some servers send that with anything."""
    return re.match(rb"(\s|\xef\xbb\xbf|<!--.*?-->)*<(!doctype html|html|head|body)\b", data, re.I | re.S) is not None


def words_of(data: bytes) -> str:
    """The title and the first words of a page, or the beginning of a text, in one line; "" without any."""
    text = data[:65_536].decode(errors="replace")
    if is_page(data):
        reader = _PageReader()
        reader.feed(text)
        title, text = (" ".join("".join(part).split()) for part in (reader.title, reader.text))
        text = " · ".join(filter(None, [title, text.removeprefix(title).strip() if title else text]))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= LENGTH else f"{text[:LENGTH]}…"


class _PageReader(HTMLParser):
    """Collects what a browser would show."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.text: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("title", "script", "style") and not self._hidden:
            self._hidden = tag
        self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""
        self.text.append(" ")

    def handle_data(self, data: str) -> None:
        if self._hidden == "title":
            self.title.append(data)
        elif not self._hidden:
            self.text.append(data)

# SPDX-License-Identifier: Apache-2.0
"""HTML read by the standard library's parser: elements with their text, and whether all that opens is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "path"})


@dataclass
class Element:
    """One element; `text` includes that of its children."""

    tag: str
    attributes: Mapping[str, str]
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the element, with single spaces."""
        return " ".join("".join(self.texts).split())


class Reader(HTMLParser):
    """Reads a page; fails where an element is closed that is not the last one open."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, f"not closed: {[element.tag for element in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """List the elements of a tag, with these attributes (class_ for class)."""
        expected = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            element
            for element in self.elements
            if element.tag == tag and expected.items() <= element.attributes.items()
        ]

    def one(self, tag: str, **attributes: str) -> Element:
        """Return the only element of a tag with these attributes."""
        (element,) = self.all(tag, **attributes)
        return element

    @property
    def tiles(self) -> set[str]:
        """The names of the nodes on the map."""
        return {element.attributes["id"].removeprefix("n-") for element in self.all("a") if "id" in element.attributes}

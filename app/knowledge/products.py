# SPDX-License-Identifier: Apache-2.0
"""GPU products: the table of products by label, and the patterns of policies and annotations that match products.

Patterns match whole tokens between hyphens and never substrings: A10 is not A100, L4 is not L40 or L40S, and H20 is not
H200 (P1, P2).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from app.values.errors import BadInput
from app.values.versions import Version, parse_version

_VENDOR = re.compile(r"^(?:nvidia|tesla)-", re.IGNORECASE)
_SUFFIX = re.compile(r"(?:-MIG-[^-]+(?:-me)?)?(?:-SHARED)?$", re.IGNORECASE)
_SOCKET = re.compile(r"^SXM\d$")
_TOKENS = re.compile(r"[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*")
LONGEST_PATTERN = 63
"""Characters of a pattern, as many as a label value may have (Kubernetes labels syntax)."""


@dataclass(frozen=True, slots=True)
class Product:
    """One row of gpu_products.yaml.

    `memory_mib` is the memory in MiB that the GPU reports. `nvlink` is true only if NVLink connects all GPUs of a node
    with each other (SXM, HGX, NVL72). `form_factor` is SXM, PCIe, superchip or SoC. `unsourced` says that the row has
    no public source. `aliases` are the labels that older drivers have for the product.
    """

    label: str
    family: str
    compute_capability: Version
    memory_mib: int | None
    nvlink: bool
    datacenter: bool
    form_factor: str | None
    unsourced: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProductPattern:
    """A pattern as a user wrote it, and the products that it matches.

    `labels` are the products in normal form if the text is a known name or family; otherwise it is None, and the
    regular expression decides.
    """

    text: str
    labels: frozenset[str] | None
    expression: re.Pattern[str] | None = None

    def matches(self, product: str) -> bool:
        """Tell whether the pattern matches a product in normal form."""
        if self.labels is not None:
            return product in self.labels
        return self.expression is not None and self.expression.search(product) is not None


def normal_form(label: str) -> str:
    """Reduce a product label to its normal form: lower case, without vendor prefix and sharing or MIG suffix.

    Drivers before about 470 have no prefix `NVIDIA-` (gpu_products.yaml, conventions).
    """
    return _SUFFIX.sub("", _VENDOR.sub("", label)).lower()


@dataclass(frozen=True, slots=True)
class Products:
    """The product table, indexed by normal form and by family (lower case)."""

    by_form: Mapping[str, Product]
    families: Mapping[str, frozenset[str]]

    def find(self, label: str) -> Product | None:
        """Find the product of a node's product label; None if the table lacks it."""
        return self.by_form.get(normal_form(label))

    def pattern(self, text: str) -> ProductPattern:
        """Read one item of a product list, without its `!`.

        A name with vendor prefix is that product, and a known family is all its products. Any other text is a sequence
        of tokens, in which `*` stands for one or more whole tokens.
        Raises BadInput for a syntax error, such as a star inside a token.
        """
        text = text.strip()
        if "*" in text:
            return ProductPattern(text, None, _token_pattern(text))
        if not _TOKENS.fullmatch(text) or len(text) > LONGEST_PATTERN:
            raise BadInput(f"product: got {text[:40]!r}, wants a name such as H100 or NVIDIA-A100-SXM4-*")
        form = normal_form(text)
        if _VENDOR.match(text):
            return ProductPattern(text, frozenset((form,)))
        if form in self.families:
            return ProductPattern(text, self.families[form])
        if form in self.by_form:
            return ProductPattern(text, frozenset((form,)))
        return ProductPattern(text, None, re.compile(rf"(?:^|-){re.escape(form)}(?:-|$)"))

    def names_any(self, pattern: ProductPattern) -> bool:
        """Tell whether a pattern matches at least one product of the table."""
        return any(pattern.matches(form) for form in self.by_form)

    def suggest(self, text: str) -> str | None:
        """Guess the product or family that a misspelt text means; None if no name is similar."""
        words = {family.family.lower(): family.family for family in self.by_form.values()}
        words |= {product.label.lower(): product.label for product in self.by_form.values()}
        alike = {_without_lookalikes(word): word for word in words}
        closest = get_close_matches(_without_lookalikes(text.lower()), alike, n=1, cutoff=0.6)
        return words[alike[closest[0]]] if closest else None


def _without_lookalikes(word: str) -> str:
    """Replace letters by the digits that they look like, so that H1OO is equal to H100."""
    return word.replace("o", "0").replace("i", "1")


def _token_pattern(text: str) -> re.Pattern[str]:
    tokens = normal_form(text).split("-")
    for token in tokens:
        if token != "*" and not _TOKENS.fullmatch(token):
            raise BadInput(f"product: got {text[:40]!r}, wants * as a whole token, as in NVIDIA-A100-SXM4-*")
    if len(text) > LONGEST_PATTERN or tokens.count("*") > 3:
        raise BadInput(f"product: got {text[:40]!r}, wants at most {LONGEST_PATTERN} characters and three stars")
    return re.compile(
        "^" + "-".join("[^-]+(?:-[^-]+)*" if token == "*" else re.escape(token) for token in tokens) + "$"
    )


def load_products(rows: Iterable[Mapping[str, Any]]) -> Products:
    """Index the `products` of gpu_products.yaml."""
    by_form: dict[str, Product] = {}
    families: dict[str, set[str]] = {}
    for row in rows:
        form = normal_form(row["product"])
        by_form[form] = _product(row)
        families.setdefault(row["family"].lower(), set()).add(form)
    return Products(by_form, {family: frozenset(forms) for family, forms in families.items()})


def _product(row: Mapping[str, Any]) -> Product:
    return Product(
        label=row["product"],
        family=row["family"],
        compute_capability=parse_version(row["compute_capability"]),
        memory_mib=row["memory_mib"],
        nvlink=_has_full_nvlink(row["nvlink"]),
        form_factor=_SOCKET.sub("SXM", row.get("form_factor") or "") or None,
        datacenter="geforce" not in row["product"].lower(),
        unsourced=bool(row.get("unsourced")),
        aliases=tuple(row.get("aliases", ())),
    )


def _has_full_nvlink(nvlink: bool | str) -> bool:
    """Tell whether NVLink connects all GPUs of a node.

    NVLink bridges connect only two cards, and NVLink-C2C connects a GPU to its CPU
    (docs/reference/compatibility.md#interconnect).
    """
    return nvlink is True or (isinstance(nvlink, str) and "NVL72" in nvlink)

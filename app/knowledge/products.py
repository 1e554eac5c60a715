# SPDX-License-Identifier: Apache-2.0
"""GPU products: the table of products by label, and the patterns of policies and annotations that match products.

Patterns match whole tokens between hyphens and never substrings: A10 is not A100, L4 is not L40 or L40S, and H20 is not
H200. A family also means variants that no row has, such as H100-96GB-HBM3, and vGPU types with all memory of
their board, such as A10-24Q; it never means a vGPU type with a part of it, such as A10-8Q
(docs/decisions/0043-read-names-of-products-by-a-grammar.md).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeVar

from app.values.errors import BadInput
from app.values.versions import Version, parse_version

_VENDOR = re.compile(r"^(?:nvidia|tesla)-", re.IGNORECASE)
_SUFFIX = re.compile(r"(?:-MIG-[^-]+(?:-me)?)?(?:-SHARED)?$", re.IGNORECASE)
_SOCKET = re.compile(r"^SXM\d$")
_TOKENS = re.compile(r"[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*")
_VGPU_TYPE = re.compile(r"(?:grid-)?(?P<board>.+?)-(?P<slices>\d-)?(?P<gib>\d{1,3})(?P<series>[abcq])[a-z]*")
"""A vGPU type in lower case: board, GPU instance slices of a MIG-backed one, frame buffer in GiB, series, and a suffix
such as `me` (docs.nvidia.com/vgpu, Virtual GPU Types Reference). The 0 of 0B and 0Q is 512 MiB."""
_SIZE = re.compile(r"(?:^|-)(\d{1,4})gb?(?:-|$)")
"""The memory of a variant in its name, as in H100-96GB-HBM3 and GH200-144G-HBM3e."""
LONGEST_PATTERN = 63
"""Characters of a pattern, as many as a label value may have (Kubernetes labels syntax)."""
WHOLE_MILLI = 1000
"""A whole GPU in thousandths."""
PRODUCTS_KEPT = 1024
"""Names in the cache of `_read_name`; a cluster has dozens of them."""
Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Product:
    """One row of gpu_products.yaml, or what the grammar of names tells of a variant; facts that are None are unknown.

    `memory_mib` is the memory in MiB that the GPU reports. `nvlink`
    is true only if NVLink connects all GPUs of a node with each other (SXM, HGX, NVL72). `form_factor` is SXM, PCIe,
    superchip or SoC. `unsourced` says that the row has no public source. `aliases` are the labels that older drivers
    have for the product. `milli` is the share of a GPU in thousandths, less than WHOLE_MILLI for a vGPU type that has a
    part of its board.
    """

    label: str
    family: str
    compute_capability: Version
    memory_mib: int | None
    nvlink: bool | None
    datacenter: bool
    form_factor: str | None
    unsourced: bool
    aliases: tuple[str, ...] = ()
    milli: int = WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class VGPUBoard:
    """A board as vGPU types name it: the form of its product in the table, and its frame buffer in GiB."""

    form: str
    gib: int


@dataclass(frozen=True, slots=True)
class ProductPattern:
    """A pattern as a user wrote it, and the products that it matches.

    `labels` are the products of the table in normal form if the text is a known name or family; otherwise it is None.
    The regular expression, which is in RE2's syntax, matches further products: of a family, its variants.
    """

    text: str
    labels: frozenset[str] | None
    expression: re.Pattern[str] | None = None

    def matches(self, product: str) -> bool:
        """Tell whether the pattern matches a product in normal form."""
        if self.labels is not None and product in self.labels:
            return True
        return self.expression is not None and self.expression.search(product) is not None

    @property
    def listed(self) -> bool:
        """Tell whether `labels` are all that the pattern ever matches."""
        return self.labels is not None and self.expression is None


def normal_form(label: str) -> str:
    """Reduce a product label to its normal form: lower case, hyphens, without vendor prefix and sharing or MIG suffix.

    Drivers before about 470 have no prefix `NVIDIA-` (gpu_products.yaml, conventions). AMD's labels have underscores
    for spaces.
    """
    return _SUFFIX.sub("", _VENDOR.sub("", label)).lower().replace("_", "-")


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """The product table, indexed by normal form and by family (lower case), and the grammar of other names.

    `variants` are the expressions of the families, `boards` those that vGPU types name. `others` matches names of
    products of vendors whose GPUs have no CUDA, of which no facts are known. Compared by identity, so that names can be
    cached.
    """

    by_form: Mapping[str, Product]
    families: Mapping[str, frozenset[str]]
    variants: Mapping[str, re.Pattern[str]]
    boards: Mapping[str, VGPUBoard]
    others: re.Pattern[str]

    @property
    def most_memory_mib(self) -> int:
        """The memory in MiB of the product that has the most."""
        return max(product.memory_mib or 0 for product in self.by_form.values())

    def find(self, label: str) -> Product | None:
        """Find the product of a node's product label, by its row or by the grammar; None if neither has it."""
        form = normal_form(label)
        return self.by_form.get(form) or _read_name(self, form)

    def pattern(self, text: str) -> ProductPattern:
        """Read one item of a product list, without its `!`.

        A name with vendor prefix is that product, and a known family is all its products and their variants. Any other
        text is a sequence of tokens, in which `*` stands for one or more whole tokens.
        Raises BadInput for a syntax error, such as a star inside a token.
        """
        text = text.strip()
        if "*" in text:
            return ProductPattern(text, None, _token_pattern(text))
        if not _TOKENS.fullmatch(text) or len(text) > LONGEST_PATTERN:
            words = text.split() if len(text) <= LONGEST_PATTERN else []
            similar = self.correction(text) if len(words) > 1 else None
            hint = f", did you mean {similar}?" if similar else ""
            raise BadInput(f"product: got {text[:40]!r}, wants a name such as H100 or NVIDIA-A100-SXM4-*{hint}")
        form = normal_form(text)
        if form in self.families and not _VENDOR.match(text):
            return ProductPattern(text, self.families[form], self.variants[form])
        if form in self.by_form:
            return ProductPattern(text, frozenset((form,)))
        if _VENDOR.match(text):
            return ProductPattern(text, None, re.compile(f"^{re.escape(form)}$"))
        return ProductPattern(text, None, re.compile(rf"(?:^|-){re.escape(form)}(?:-|$)"))

    def names_any(self, pattern: ProductPattern) -> bool:
        """Tell whether a pattern matches a product of the table, or is a name of the grammar or of another vendor."""
        if any(pattern.matches(form) for form in self.by_form) or self.find(pattern.text) is not None:
            return True
        return self.others.fullmatch(normal_form(pattern.text)) is not None

    def with_star(self, text: str) -> str | None:
        """Give the pattern that a name without a row means, such as A100-*-40GB for A100-40GB, or None."""
        if "*" in text or text.count("-") > 3 or any(self.pattern(text).matches(form) for form in self.by_form):
            return None
        spread = self.pattern(text.replace("-", "-*-"))
        return spread.text if any(spread.matches(form) for form in self.by_form) else None

    def correction(self, text: str) -> str | None:
        """Guess the name that a text means which names no product as it is written; None for any other text."""
        words = "-".join(text.split())
        too_long = len(words) > LONGEST_PATTERN or words.count("*") > 3
        if too_long or not _TOKENS.fullmatch(words.replace("*", "x")):
            return None
        if self.names_any(self.pattern(words)):
            return None if words == text else words
        return self.with_star(words) or self.suggest(words)

    def suggest(self, text: str) -> str | None:
        """Guess the product or family that a misspelt text means; None if no name is similar."""
        rows = self.by_form.values()
        if (family := normal_form(normal_form(text))) in self.families:  # nvidia-tesla-t4, as GKE labels it
            return next(row.family for row in rows if row.family.lower() == family)
        words = {word.lower(): word for row in rows for word in (row.family, row.label)}
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


@lru_cache(maxsize=PRODUCTS_KEPT)
def _read_name(products: Products, form: str) -> Product | None:
    """Read a name that no row has: a vGPU type, or a variant of a family; None for any other name."""
    vgpu = _VGPU_TYPE.fullmatch(form)
    board = products.boards.get(vgpu["board"]) if vgpu else None
    if vgpu and board:
        return _vgpu(products.by_form[board.form], board, vgpu)
    family = next((name for name, expression in products.variants.items() if expression.search(form)), None)
    return _variant(form, [products.by_form[name] for name in products.families[family]]) if family else None


def _vgpu(row: Product, board: VGPUBoard, vgpu: re.Match[str]) -> Product:
    """Describe a vGPU type of a board.

    Only a C-series type with all memory of the board, which is not MIG-backed, has NVLink (docs.nvidia.com/vgpu,
    vGPUs that Support Peer-to-Peer CUDA Transfers).
    """
    gib = int(vgpu["gib"])
    whole = gib >= board.gib
    return replace(
        row,
        label=vgpu[0].upper(),
        memory_mib=row.memory_mib if whole else gib * 1024 or 512,
        nvlink=row.nvlink if whole and vgpu["series"] == "c" and not vgpu["slices"] else False,
        milli=WHOLE_MILLI if whole else WHOLE_MILLI * gib // board.gib,
        aliases=(),
    )


def _variant(form: str, rows: list[Product]) -> Product:
    """Describe a variant of a family by what its rows have in common, or those of the same form factor."""
    tokens = form.split("-")
    form_factor = "PCIe" if {"pcie", "nvl"}.intersection(tokens) else "SXM" if "-sxm" in form else None
    alike = [row for row in rows if row.form_factor == form_factor] or rows
    size = _SIZE.search(form)
    return replace(
        alike[0],
        label=form.upper(),
        memory_mib=int(size[1]) * 1024 if size else _common(alike, lambda row: row.memory_mib),
        nvlink=_common(alike, lambda row: row.nvlink),
        form_factor=form_factor or _common(alike, lambda row: row.form_factor),
        unsourced=True,
        aliases=(),
    )


def _common(rows: list[Product], fact_of: Callable[[Product], Fact | None]) -> Fact | None:
    facts = {fact_of(row) for row in rows}
    return facts.pop() if len(facts) == 1 else None


def load_products(document: Mapping[str, Any]) -> Products:
    """Index the products of gpu_products.yaml, and compile the grammar of their names."""
    by_form = {normal_form(row["product"]): _product(row) for row in document["products"]}
    families: dict[str, set[str]] = {}
    for form, product in by_form.items():
        families.setdefault(product.family.lower(), set()).add(form)
    boards = {
        row["board"].lower(): VGPUBoard(normal_form(row["product"]), row["gib"]) for row in document["vgpu_boards"]
    }
    return Products(
        by_form,
        {family: frozenset(forms) for family, forms in families.items()},
        {family: _variants(family, forms, boards, document["name_tokens"]) for family, forms in families.items()},
        boards,
        re.compile("|".join(row["names"] for row in document["other_vendors"])),
    )


def _variants(
    family: str, forms: set[str], boards: Mapping[str, VGPUBoard], tokens: Mapping[str, list[str]]
) -> re.Pattern[str]:
    """Compile the names of a family's variants: tokens around the family's word, and vGPU types of all its memory."""
    before, after = "|".join(tokens["before"]), "|".join(tokens["after"])
    names = [f"^(?:(?:{before})-)*{family}(?:-(?:{after}))+$"]
    vgpus = "|".join(f"{name}-(?:[0-9]-)?{board.gib}" for name, board in boards.items() if board.form in forms)
    if vgpus:
        names.append(f"^(?:grid-)?(?:{vgpus})[abcq]$")
    return re.compile("|".join(names))


def _product(row: Mapping[str, Any]) -> Product:
    return Product(
        label=row["product"],
        family=row["family"],
        compute_capability=parse_version(row["compute_capability"]),
        memory_mib=row["memory_mib"],
        # Bridges connect only two cards, NVLink-C2C a GPU to its CPU (docs/reference/compatibility.md#interconnect).
        nvlink=row["nvlink"] is True or "NVL72" in str(row["nvlink"]),
        form_factor=_SOCKET.sub("SXM", row.get("form_factor") or "") or None,
        datacenter="geforce" not in row["product"].lower(),
        unsourced=bool(row.get("unsourced")),
        aliases=tuple(row.get("aliases", ())),
    )

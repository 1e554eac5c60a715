# SPDX-License-Identifier: Apache-2.0
"""Reading of the pod annotations `gpu-usher.io/…` into needs (docs/reference/policy.md#annotations)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

from app.knowledge.products import ProductPattern, Products
from app.kube.pods import DECISION, PREFIX
from app.policy.needs import (
    ALLOWED_PRODUCTS,
    DENIED_PRODUCTS,
    LONGEST_GUESSED_NAME,
    NEEDS,
    Annotation,
    Needs,
    choice,
)
from app.policy.schema import WorkloadClass
from app.values.errors import BadInput
from app.values.reasons import Code, Reason, reason


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """The content of a pod's annotations: its needs, its workload class, and problems.

    `invalid` are the reasons for annotations that do not parse, and `warnings` are texts about unknown names.
    `unknown_products` are the patterns that match no product of the table, each with its warning, which holds where no
    node carries such a product either. They remain in force, as a new product may match.
    """

    needs: Needs = field(default_factory=dict)
    workload_class: str | None = None
    invalid: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    unknown_products: tuple[tuple[ProductPattern, str], ...] = ()


def read_annotations(annotations: Mapping[str, str], products: Products) -> PodAnnotations:
    """Read all `gpu-usher.io/` annotations; one that does not parse becomes a Reason and not an exception."""
    ours = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    ours.pop(DECISION.removeprefix(PREFIX), None)
    warnings = _misspelt_prefixes(annotations)
    if not ours:
        return PodAnnotations(warnings=warnings) if warnings else PodAnnotations()
    return _read_ours(ours, products, list(warnings))


def _misspelt_prefixes(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Warn of keys that have one of our names behind another prefix that is nearly ours."""
    keys = (key for key in annotations if key.rpartition("/")[2] in ANNOTATIONS and not key.startswith(PREFIX))
    alike = (key for key in islice(keys, MOST_GUESSES) if _is_nearly_ours(key.rpartition("/")[0]))
    return tuple(
        f"annotation {key[:63]} has no effect; did you mean {PREFIX}{key.rpartition('/')[2]}?" for key in alike
    )


def _is_nearly_ours(prefix: str) -> bool:
    return len(prefix) <= LONGEST_GUESSED_NAME and bool(
        get_close_matches(prefix, [PREFIX.removesuffix("/")], 1, ALIKE_PREFIX)
    )


def _read_ours(ours: Mapping[str, str], products: Products, warnings: list[str]) -> PodAnnotations:
    needs: dict[Any, Any] = {}
    invalid: list[Reason] = []
    guesses = 0
    for key, value in sorted(ours.items()):
        if key not in ANNOTATIONS:
            guesses += 1
            guess = guesses <= MOST_GUESSES and len(key) <= LONGEST_GUESSED_NAME
            similar = get_close_matches(key, ANNOTATIONS, n=1) if guess else []
            hint = f", did you mean {similar[0]}?" if similar else ""
            warnings.append(f"unknown annotation {PREFIX}{key[:40]} is ignored{hint}")
            continue
        try:
            needs.update(_read_one(key, value, products))
        except BadInput as error:
            invalid.append(reason(Code.InvalidAnnotation, f"{PREFIX}{key} does not parse: {error}"))
    warnings.extend(_doubts(needs, products, ours))
    unknown = tuple(_unknown_products(needs, products))
    workload_class = needs.pop(WORKLOAD_CLASS_NAME, None)
    return PodAnnotations(needs, workload_class, tuple(invalid), tuple(warnings), unknown)


def read_products(
    text: str, products: Products
) -> tuple[tuple[ProductPattern, ...] | None, tuple[ProductPattern, ...]]:
    """Read `H100, H200, !A10` into (allowed or None, denied).

    Raises BadInput.
    """
    items = [item.strip() for item in text.split(",")]
    if len(items) > MOST_ANNOTATED_PRODUCTS:
        raise BadInput(f"products: got {len(items)} items, wants at most {MOST_ANNOTATED_PRODUCTS}")
    allow = tuple(products.pattern(item) for item in items if not item.startswith("!"))
    deny = tuple(products.pattern(item[1:]) for item in items if item.startswith("!"))
    return allow or None, deny


MOST_GUESSES = 3
"""Unknown keys for which a similar name is searched, because a pod can have thousands."""
ALIKE_PREFIX = 0.75
"""The similarity of a prefix to ours, as difflib measures it, from which it is a misspelling: gpu-usher.ai has 0.92,
gpu-usher 0.86. A guess."""
MOST_ANNOTATED_PRODUCTS = 32
"""Items in a list of products. A guess: the product table has 34 families, and no pod lists them all."""


WORKLOAD_CLASS_NAME = "workload-class"
"""The annotation that states no need, but selects policies."""


ANNOTATIONS: Mapping[str, Annotation] = {
    annotation.name: annotation
    for annotation in (
        Annotation(
            "products",
            str,
            '`["!"] PRODUCT {"," ["!"] PRODUCT}`, at most 32',
            ("H100, H200, !H100-PCIe", "NVIDIA-A100-SXM4-*"),
            "any of these; `!` excludes; matched as in `products.allow`",
        ),
        *(need.annotation for need in NEEDS if need.annotation),
        Annotation(
            WORKLOAD_CLASS_NAME,
            choice({member.value: member.value for member in WorkloadClass}),
            "`training`, `inference`, `batch-inference` or `notebook`",
            ("training",),
            "picks the policies that name the class in `match.workloadClass`",
        ),
    )
}
"""The annotations by name, as policies/README.md lists them."""
_STATED = {need.annotation.name: need for need in NEEDS if need.annotation}


def _read_one(name: str, text: str, products: Products) -> Mapping[Any, Any]:
    """Read the needs that one annotation states. Raises BadInput."""
    if name == "products":
        allow, deny = read_products(text, products)
        stated = {ALLOWED_PRODUCTS: allow, DENIED_PRODUCTS: deny}
        return {need: patterns for need, patterns in stated.items() if patterns}
    return {_STATED.get(name, name): ANNOTATIONS[name].parse(text)}


def _doubts(needs: Needs, products: Products, ours: Mapping[str, str]) -> Iterator[str]:
    """Warn of values that cannot be meant; they remain in force."""
    for name, need in _STATED.items():
        if need.doubt and need in needs and (doubt := need.doubt(needs[need], products)):
            yield f"{PREFIX}{name}: {ours[name][:40]} {doubt}"


def _unknown_products(needs: Needs, products: Products) -> Iterator[tuple[ProductPattern, str]]:
    for pattern in (*(ALLOWED_PRODUCTS.of(needs) or ()), *(DENIED_PRODUCTS.of(needs) or ())):
        if not products.names_any(pattern):
            similar = products.suggest(pattern.text)
            hint = f", did you mean {similar}?" if similar else ""
            yield pattern, f"unknown GPU product {pattern.text}{hint}"

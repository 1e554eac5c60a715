# SPDX-License-Identifier: Apache-2.0
"""The pod's own words: annotations `gpu-usher.io/…` read into needs (docs/reference/policy.md#annotations)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from app.knowledge.mig_profiles import parse_profile
from app.knowledge.products import ProductPattern, Products
from app.kube.pods import DECISION, PREFIX
from app.policy.schema import WorkloadClass
from app.policy.schema_placement import FormFactor, SharingWish
from app.values.errors import BadInput
from app.values.label_requirements import Requirement
from app.values.quantity import parse_mib
from app.values.reasons import Code, Reason, reason
from app.values.versions import Version, parse_minimum


@dataclass(frozen=True, slots=True)
class Needs:
    """What one source (a policy, or the pod's annotations) needs of a node; None or empty is nothing."""

    allow: tuple[ProductPattern, ...] | None = None
    deny: tuple[ProductPattern, ...] = ()
    cuda: Version | None = None
    memory_mib: int | None = None
    compute_capability: Version | None = None
    sharing: SharingWish | None = None
    mig_profile: tuple[str, bool] | None = None
    nvlink: bool = False
    form_factors: frozenset[FormFactor] | None = None
    node_selector: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """What a pod's annotations say: its needs, what is wrong with them, and what to warn about."""

    needs: Needs = Needs()
    workload_class: str | None = None
    invalid: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def read_annotations(annotations: Mapping[str, str], products: Products) -> PodAnnotations:
    """Read every `gpu-usher.io/` annotation; one that does not parse becomes a Reason, not an exception."""
    ours = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    ours.pop(DECISION.removeprefix(PREFIX), None)
    if not ours:
        return PodAnnotations()
    read: dict[str, Any] = {}
    invalid: list[Reason] = []
    warnings: list[str] = []
    for key, value in sorted(ours.items()):
        if key not in _READERS:
            guessing = len(warnings) < GUESSES and len(key) <= LONGEST_GUESSED
            meant = get_close_matches(key, _READERS, n=1) if guessing else []
            hint = f", did you mean {meant[0]}?" if meant else ""
            warnings.append(f"unknown annotation {PREFIX}{key[:40]} is ignored{hint}")
            continue
        try:
            read.update(_READERS[key](value, products))
        except BadInput as error:
            invalid.append(reason(Code.InvalidAnnotation, f"{PREFIX}{key} does not parse: {error}"))
    warnings.extend(_unknown_products(read, products))
    workload_class = read.pop("workload_class", None)
    return PodAnnotations(Needs(**read), workload_class, tuple(invalid), tuple(warnings))


def read_products(
    text: str, products: Products
) -> tuple[tuple[ProductPattern, ...] | None, tuple[ProductPattern, ...]]:
    """Read `H100, H200, !A10` into (allowed or None, denied).

    Raises BadInput.
    """
    items = [item.strip() for item in text.split(",")]
    if len(items) > MOST_PRODUCTS:
        raise BadInput(f"products: got {len(items)} items, wants at most {MOST_PRODUCTS}")
    allow = tuple(products.pattern(item) for item in items if not item.startswith("!"))
    deny = tuple(products.pattern(item[1:]) for item in items if item.startswith("!"))
    return allow or None, deny


GUESSES, LONGEST_GUESSED = 3, 40
"""Unknown keys, and their characters, for which a name is guessed: nobody reads more, and a pod can hold thousands."""
MOST_PRODUCTS = 32
"""Items; the product table has 34 families, and no pod lists them all."""


def _products(text: str, products: Products) -> dict[str, Any]:
    allow, deny = read_products(text, products)
    return {"allow": allow, "deny": deny}


def _one_of(choices: Mapping[str, Any], field_name: str) -> Callable[[str, Products], dict[str, Any]]:
    def read(text: str, _products: Products) -> dict[str, Any]:
        value = choices.get(text.strip().lower())
        if value is None:
            raise BadInput(f"got {text[:20]!r}, wants {' or '.join(choices)}")
        return {field_name: value}

    return read


_READERS: Mapping[str, Callable[[str, Products], dict[str, Any]]] = {
    "products": _products,
    "cuda": lambda text, _: {"cuda": parse_minimum(text)},
    "gpu-memory": lambda text, _: {"memory_mib": parse_mib(text.removeprefix(">="))},
    "compute-capability": lambda text, _: {"compute_capability": parse_minimum(text)},
    "interconnect": _one_of({"nvlink": True}, "nvlink"),
    "sharing": _one_of({each.value.lower(): each for each in SharingWish}, "sharing"),
    "mig-profile": lambda text, _: {"mig_profile": parse_profile(text)},
    "workload-class": _one_of({each.value: each.value for each in WorkloadClass}, "workload_class"),
}


GRAMMAR: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "products": (
        '`["!"] PRODUCT {"," ["!"] PRODUCT}`, at most 32',
        ("H100, H200, !H100-PCIe", "NVIDIA-A100-SXM4-*"),
        "any of these; `!` excludes; matched as in `products.allow`",
    ),
    "cuda": ('`[">="] N {"." N}`', ("12.4", ">=12"), "at least this CUDA must run there"),
    "gpu-memory": (
        '`[">="] AMOUNT`',
        ("40Gi", ">=80GB"),
        "at least, per GPU or slice; on shared GPUs also what the pod will use of each",
    ),
    "compute-capability": ('`[">="] N {"." N}`', ("8.0", ">=9"), "at least"),
    "sharing": (
        "`Exclusive`, `Shared` or `Any`",
        ("Exclusive",),
        "a whole GPU or MIG slice, never a replica; a replica; either",
    ),
    "mig-profile": ('`[">="] PROFILE`', ("1g.10gb", ">=1g.10gb"), "exactly that slice; with `>=` any that covers it"),
    "interconnect": ("`NVLink`", ("NVLink",), "GPUs joined all-to-all"),
    "workload-class": (
        "`training`, `inference`, `batch-inference` or `notebook`",
        ("training",),
        "picks the policies that name the class in `match.workloadClass`",
    ),
}
"""What may be written after gpu-usher.io/: grammar in Markdown, examples, meaning; the page of policies shows it."""


def _unknown_products(read: Mapping[str, Any], products: Products) -> list[str]:
    """Warn of names that no known product carries; the need is kept (a new product may have that name)."""
    warnings = []
    for pattern in (*(read.get("allow") or ()), *read.get("deny", ())):
        if not products.known(pattern):
            meant = products.suggest(pattern.text)
            hint = f", did you mean {meant}?" if meant else ""
            warnings.append(f"unknown GPU product {pattern.text}{hint}")
    return warnings

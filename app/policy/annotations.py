# SPDX-License-Identifier: Apache-2.0
"""Reading of the pod annotations `gpu-usher.io/…` into needs (docs/reference/policy.md#annotations)."""

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
    """The needs that one source states, a policy or the pod's annotations; None or empty states nothing.

    `allow` and `deny` are product patterns. `cuda` is the least CUDA version that must run, `memory_mib` the least
    memory of each GPU or MIG slice, and `compute_capability` the least compute capability. `mig_profile` is (profile,
    whether larger profiles qualify too). `form_factors` are alternatives.
    """

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
    """The content of a pod's annotations: its needs, its workload class, and problems.

    `invalid` are the reasons for annotations that do not parse, and `warnings` are texts about unknown names.
    """

    needs: Needs = Needs()
    workload_class: str | None = None
    invalid: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def read_annotations(annotations: Mapping[str, str], products: Products) -> PodAnnotations:
    """Read all `gpu-usher.io/` annotations; one that does not parse becomes a Reason and not an exception."""
    ours = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    ours.pop(DECISION.removeprefix(PREFIX), None)
    if not ours:
        return PodAnnotations()
    needs: dict[str, Any] = {}
    invalid: list[Reason] = []
    warnings: list[str] = []
    for key, value in sorted(ours.items()):
        if key not in _READERS:
            guess = len(warnings) < MOST_GUESSES and len(key) <= LONGEST_GUESSED
            similar = get_close_matches(key, _READERS, n=1) if guess else []
            hint = f", did you mean {similar[0]}?" if similar else ""
            warnings.append(f"unknown annotation {PREFIX}{key[:40]} is ignored{hint}")
            continue
        try:
            needs.update(_READERS[key](value, products))
        except BadInput as error:
            invalid.append(reason(Code.InvalidAnnotation, f"{PREFIX}{key} does not parse: {error}"))
    warnings.extend(_unknown_products(needs, products))
    workload_class = needs.pop("workload_class", None)
    return PodAnnotations(Needs(**needs), workload_class, tuple(invalid), tuple(warnings))


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


MOST_GUESSES, LONGEST_GUESSED = 3, 40
"""Unknown keys, and characters of one, for which a similar name is searched, because a pod can have thousands."""
MOST_PRODUCTS = 32
"""Items in a list of products. A guess: the product table has 34 families, and no pod lists them all."""


def _products(text: str, products: Products) -> dict[str, Any]:
    allow, deny = read_products(text, products)
    return {"allow": allow, "deny": deny}


def _choice_reader(choices: Mapping[str, Any], field_name: str) -> Callable[[str, Products], dict[str, Any]]:
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
    "interconnect": _choice_reader({"nvlink": True}, "nvlink"),
    "sharing": _choice_reader({wish.value.lower(): wish for wish in SharingWish}, "sharing"),
    "mig-profile": lambda text, _: {"mig_profile": parse_profile(text)},
    "workload-class": _choice_reader({member.value: member.value for member in WorkloadClass}, "workload_class"),
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
"""The annotations by name: grammar in Markdown, examples, and meaning, which policies/README.md shows."""


def _unknown_products(needs: Mapping[str, Any], products: Products) -> list[str]:
    """List warnings for patterns that match no known product; they remain in force, as a new product may match."""
    warnings = []
    for pattern in (*(needs.get("allow") or ()), *needs.get("deny", ())):
        if not products.names_any(pattern):
            similar = products.suggest(pattern.text)
            hint = f", did you mean {similar}?" if similar else ""
            warnings.append(f"unknown GPU product {pattern.text}{hint}")
    return warnings

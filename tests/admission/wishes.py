# SPDX-License-Identifier: Apache-2.0
"""Random pods with needs and node affinity of their own, and the policies that apply to them."""

import random
from functools import cache
from typing import Any

from app.policy.compiled import PolicySet
from tests.admission.fleets import PROFILES
from tests.builders import container, pod, policies, policy
from tests.oracles.node_affinity import REQUIRED
from tests.placement.twin_draw import IMAGES, WORDS

REQUIREMENTS = (
    "cuda>=11.8",
    "cuda>=12.4",
    "cuda>=13.0",
    "driver>=535",
    "cuda>=12.2 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=525,driver<526",
    "brand=geforce,driver>=450",
    "odd!",
)
SHAPES = {
    "products": (*WORDS, "NVIDIA-A100-*", "*-SXM4-*", "NVIDIA-XYZ-9000", "A10G", "L40S", "B200", "Tesla-T4"),
    "cuda": ("11.8", "12.0", "12.2", "12.4", "12.9", "13.0"),
    "gpu-memory": ("10Gi", "16Gi", "24Gi", "40GB", "80Gi", "141Gi"),
    "compute-capability": ("7.0", "7.5", "8.0", "8.9", "9.0", "10.0"),
    "sharing": ("Any", "Exclusive", "Exclusive", "Shared"),
    "interconnect": ("NVLink",),
    "mig-profile": ("1g.10gb", ">=1g.5gb", ">=1g.10gb", ">=3g.40gb", "7g.80gb"),
}
SHARES = {
    "products": 6,
    "cuda": 2,
    "gpu-memory": 3,
    "compute-capability": 2,
    "sharing": 3,
    "interconnect": 1,
    "mig-profile": 1,
}
"""How often a pod has each annotation, relative to the others."""
MODES = ("Required", "Required", "Required", "Preferred", "Off")
EXTRAS = (
    "products: {allow: [H100, A100, L4]}",
    "products: {deny: [T4, V100]}",
    "gpuMemory: 24Gi",
    "sharing: Exclusive",
    "computeCapability: '8.0'",
    "cuda: {minimum: '12.2'}",
    "formFactor: [SXM, superchip]",
    "formFactor: [PCIe]",
    "nodeSelector: {matchLabels: {kubernetes.io/os: linux}}",
    "nodeSelector: {matchExpressions: [{key: nvidia.com/gpu.product, operator: Exists}, "
    "{key: karpenter.sh/capacity-type, operator: NotIn, values: [spot]}]}",
)


def wish(draw: random.Random, fleet: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw a Pod that mostly some node of the fleet could serve, with affinity about the fleet's labels."""
    target = draw.choice(fleet)
    keys = draw.choices(list(SHARES), list(SHARES.values()), k=draw.choice([0, 1, 1, 1, 2, 2, 3]))
    annotations = {key: draw.choice(SHAPES[key]) for key in keys}
    if "products" in annotations:
        annotations["products"] = _products(draw, target)
    containers = [_container(draw, f"c{index}", target) for index in range(draw.choice([1, 1, 1, 2]))]
    return pod(*containers, annotations=annotations, **user_affinity(draw, fleet))


def _products(draw: random.Random, target: dict[str, Any]) -> str:
    """Draw products; often one of them is the one in the target's labels."""
    label = target["metadata"]["labels"].get("nvidia.com/gpu.product", "")
    named = label.split("-MIG-")[0].removesuffix("-SHARED") or draw.choice(SHAPES["products"])
    words = [draw.choice([named, named, named.split("-")[1] if "-" in named else named, *SHAPES["products"][:2]])]
    for _ in range(draw.choice([0, 0, 1, 2])):
        words.append(draw.choice(["", "!"]) + draw.choice(SHAPES["products"]))
    return ", ".join(words)


def _container(draw: random.Random, name: str, target: dict[str, Any]) -> dict[str, Any]:
    """Draw a container; some have requests only, or limits only."""
    offered = [key for key, amount in target["status"]["allocatable"].items() if "/" in key and amount != "0"]
    mig = f"nvidia.com/mig-{draw.choice(PROFILES[:-1])}"
    resource = draw.choice([*offered * 6, "nvidia.com/gpu", mig, "nvidia.com/gpu.shared"])
    amounts = {resource: str(draw.choice([1, 1, 1, 1, 1, 1, 2, 8]))}
    sides = draw.choice([(amounts, amounts), (amounts, amounts), (None, amounts), (amounts, None)])
    more: dict[str, Any] = {"name": name, "image": draw.choice([*IMAGES, *["train:1"] * 3 * len(IMAGES)])}
    if draw.random() < 0.15:
        more["env"] = [{"name": "NVIDIA_REQUIRE_CUDA", "value": draw.choice(REQUIREMENTS)}]
    if draw.random() < 0.03:
        more["env"] = [{"name": "NVIDIA_DISABLE_REQUIRE", "value": "true"}]
    return container(*sides, **more)


def user_affinity(draw: random.Random, fleet: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw members of a spec: often none, or up to four alternative terms, preferences and a nodeSelector."""
    spec: dict[str, Any] = {}
    if draw.random() < 0.15:
        spec["nodeSelector"] = dict([_label(draw, fleet)])
    terms = draw.choice([0, 0, 0, 0, 0, 1, 1, 2, 3, 4])
    if terms:
        required = {"nodeSelectorTerms": [_term(draw, fleet) for _ in range(terms)]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: required}}
    elif draw.random() < 0.2:
        spec["affinity"] = draw.choice([None, {}, {"nodeAffinity": None}, {"nodeAffinity": {REQUIRED: None}}])
    return spec


def _term(draw: random.Random, fleet: list[dict[str, Any]]) -> dict[str, Any]:
    if draw.random() < 0.1:
        return draw.choice([{}, {"matchExpressions": []}, {"matchExpressions": None, "matchFields": None}])
    made: dict[str, Any] = {}
    if draw.random() < 0.8:
        made["matchExpressions"] = [_expression(draw, fleet) for _ in range(draw.choice([1, 1, 2]))]
    if draw.random() < 0.25 or not made:
        names = [draw.choice(fleet)["metadata"]["name"]]
        made["matchFields"] = [{"key": "metadata.name", "operator": draw.choice(["In", "NotIn"]), "values": names}]
    return made


def _expression(draw: random.Random, fleet: list[dict[str, Any]]) -> dict[str, Any]:
    key, value = _label(draw, fleet)
    operator = draw.choice(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    if operator in ("Gt", "Lt"):
        return {
            "key": draw.choice(["rank", "nvidia.com/gpu.memory"]),
            "operator": operator,
            "values": [draw.choice(["3", "5", "20000"])],
        }
    return {"key": key, "operator": operator, "values": sorted({value, _label(draw, fleet)[1]})}


def _label(draw: random.Random, fleet: list[dict[str, Any]]) -> tuple[str, str]:
    labels: dict[str, str] = draw.choice(fleet)["metadata"]["labels"]
    key = draw.choice(["zone"] * len(labels) + sorted(labels))
    return key, labels[key]


def rules(draw: random.Random) -> PolicySet:
    """Draw a policy set: affinity mode, compatibility, unknown facts, and sometimes needs."""
    mode, accept = draw.choice(MODES), draw.choice(["Native", "MinorVersion", "ForwardCompatible"])
    unknown = draw.choice(["Accept", "Refuse"])
    extra = draw.choice(EXTRAS) if draw.random() < 0.3 else ""
    return _rules(mode, accept, unknown, extra, draw.choice(["Enforce", "Enforce", "Warn"]))


@cache
def _rules(mode: str, accept: str, unknown: str, extra: str, action: str) -> PolicySet:
    resources = "extendedResources: {requestsOnly: CopyToLimits, mismatch: UseLimits, fractional: Deny}"
    admission = f"admission: {{affinity: {{mode: '{mode}'}}, tolerations: {{fromNodeTaints: true}}, {resources}}}"
    placement = f"placement: {{cuda: {{fromImage: true, accept: {accept}}}, unknownFacts: {unknown}}}"
    texts = [policy("base", f"priority: 1, {admission}, {placement}")]
    if extra:
        texts.append(policy("extra", f"priority: 2, action: {action}, placement: {{{extra}}}"))
    return policies(*texts)

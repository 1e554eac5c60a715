# SPDX-License-Identifier: Apache-2.0
"""Random nodes, bound pods, policies and wishes for the twin; every reason comes up, and most pairs nearly fit."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tests.placement.twin_cuda import facts
from tests.placement.twin_node import profile_of, slice_size
from tests.placement.twin_world import GPU, Part, Policy, RawNode, RawPod, Wish

T = TypeVar("T")
Labels = dict[str, str]
Units = dict[str, int]

WORDS = [
    "H100",
    "A10",
    "A100",
    "L4",
    "L40",
    "L40S",
    "T4",
    "H20",
    "H200",
    "NVIDIA-H100",
    "NVIDIA-A100-SXM4-80GB",
    "SXM4",
    "A100-80GB",
    "V100",
]
GLOBS = ["NVIDIA-A100-*", "*-SXM4-*", "NVIDIA-H100-*", "NVIDIA-XYZ-9000", "Tesla-T4", "h100"]
MONTHS = ("22.05", "23.03", "23.10", "24.03", "24.05", "25.03", "25.08", "26.06")
IMAGES = [
    *(f"nvcr.io/nvidia/pytorch:{month}-py3" for month in MONTHS),
    *(f"nvidia/cuda:{cuda}-base-ubuntu22.04" for cuda in ("11.4.3", "11.7.1", "12.1.0", "12.4.1", "12.8.0", "13.0.0")),
]  # fmt: skip
DRIVERS = [
    "450.80.02",
    "470.57.02",
    "510.47.03",
    "525.60.13",
    "525.85.12",
    "535.54.03",
    "535.86.10",
    "545.23.08",
    "550.54.14",
    "550.54.15",
    "565.57.01",
    "570.124.06",
    "580.65.06",
    "580.95.05",
    "610.43.02",
]
POPULAR = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-L4", "NVIDIA-A10", "NVIDIA-H200"]
PROFILES = ["1g.5gb", "1g.10gb", "1g.10gb", "1g.10gb.me", "2g.20gb", "3g.40gb", "7g.80gb", "1g.24gb"]
STATES = ["success", "success", "pending", "failed", "rebooting"]
UPGRADES = ["", "upgrade-done", "upgrade-required", "tomorrow", "drain-required", "upgrade-failed", "cordon-required"]
PAUSES = ["true", "paused-for-mig-change", "paused-for-driver-upgrade", "false"]
MEMORIES = ["9856", "15360", "23028", "40960", "76185", "76186", "81559", "0", "odd"]
CLOUDS = {
    "cloud.google.com/gke-accelerator": ["nvidia-l4", "nvidia-h100-80gb", "nvidia-tesla-t4", "nvidia-tomorrow"],
    "karpenter.k8s.aws/instance-gpu-name": ["l4", "a10g", "a100", "a100", "v100", "h100", "tomorrow"],
    "karpenter.azure.com/sku-gpu-name": ["T4", "A100", "H100", "MI300"],
}
ZONES = ["a", "b", "c"]


def maybe(draw: random.Random, share: float, choices: Sequence[T]) -> T | None:
    """Draw one of the choices with a probability, else None."""
    return draw.choice(choices) if draw.random() < share else None


def some(draw: random.Random, share: float, choices: Sequence[T]) -> tuple[T, ...]:
    """Draw one to three of the choices with a probability, else none."""
    return tuple(draw.choice(choices) for _ in range(draw.randint(1, 3))) if draw.random() < share else ()


def node(draw: random.Random) -> RawNode:
    """Draw a node: labels of GPU Feature Discovery, of a cloud, or of nobody."""
    kind = draw.choice(["gfd"] * 14 + ["cloud"] * 3 + ["both"] + ["nobody"])
    labels, offers = {"gfd": gfd, "both": gfd, "cloud": cloud, "nobody": nobody}[kind](draw)
    if kind == "both":
        labels = cloud(draw)[0] | labels
    if draw.random() < 0.8:
        labels["zone"] = draw.choice(ZONES)
    if draw.random() < 0.3:
        labels["tier"] = draw.choice(["gold", "silver"])
    capacity = {}
    if draw.random() < 0.25:
        capacity = {key: amount + draw.choice([0, 0, 1, 2, 8]) for key, amount in offers.items()}
    health = (draw.choice([0, 0, 0, 1, 2]), draw.choice([0, 0, 1, 3])) if draw.random() < 0.4 else None
    return RawNode(labels, offers, capacity, health)


def gfd(draw: random.Random) -> tuple[Labels, Units]:
    """Draw what GPU Feature Discovery and the operators write, with gaps, old forms and oddities."""
    rows = facts("gpu_products.yaml")["products"]
    product = draw.choice(POPULAR) if draw.random() < 0.6 else draw.choice(rows)["product"]
    row = next(each for each in rows if each["product"] == product)
    label = draw.choice([product] * 8 + [product.removeprefix("NVIDIA-")] + ["NVIDIA-XYZ-9000"])
    labels = driver_labels(draw) | {"nvidia.com/gpu.product": label}
    if draw.random() < 0.5:
        major, minor = str(row["compute_capability"]).split(".")
        labels |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    optional = {
        "nvidia.com/gpu.memory": maybe(draw, 0.3, MEMORIES),
        "nvidia.com/gpu.count": maybe(draw, 0.6, ["8", "1", "4"]),
        "nvidia.com/mig.config.state": maybe(draw, 0.1, STATES),
        "nvidia.com/gpu-driver-upgrade-state": maybe(draw, 0.1, UPGRADES),
        "nvidia.com/gpu.deploy.device-plugin": maybe(draw, 0.05, PAUSES),
    }
    labels |= {key: value for key, value in optional.items() if value is not None}
    return divided(draw, labels)


def driver_labels(draw: random.Random) -> Labels:
    """Draw the driver's labels: in full, in parts, in deprecated parts, or none."""
    version = draw.choice(DRIVERS)
    parts = version.split(".")
    new = {f"nvidia.com/cuda.driver-version.{k}": v for k, v in zip(("major", "minor", "revision"), parts, strict=True)}
    old = {f"nvidia.com/cuda.driver.{k}": v for k, v in zip(("major", "minor", "rev"), parts, strict=True)}
    full = {"nvidia.com/cuda.driver-version.full": version}
    return draw.choice([full, full, full, new, old, {**new, **old, **full}, {**new, **old}, {**old, **full}, {}])


def divided(draw: random.Random, labels: Labels) -> tuple[Labels, Units]:
    """Draw how the GPUs are given out: whole, shared, renamed, sliced by either strategy, or not at all."""
    kinds = ["whole"] * 7 + ["shared"] * 3 + ["mps"] * 2 + ["renamed", "renamed", "both", "mps renamed", "odd", "none"]
    kind = draw.choice([*kinds, "single", "single", "single shared", "mixed", "mixed", "mixed shared", "invalid"])
    count, product = draw.choice([8, 8, 8, 4, 1]), labels["nvidia.com/gpu.product"]
    shares = draw.choice([2, 4])
    said = {"nvidia.com/gpu.replicas": str(shares), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    if kind in ("shared", "mps"):
        said |= {"nvidia.com/gpu.product": f"{product}-SHARED"}
        said |= {"nvidia.com/gpu.sharing-strategy": "mps"} if kind == "mps" else {}
        said = dict(draw.sample(sorted(said.items()), k=draw.choice([2, 3, 3, 3]))) if kind == "shared" else said
        return labels | said, {GPU: count * shares}
    if kind in ("renamed", "both", "mps renamed"):
        said |= {"nvidia.com/gpu.sharing-strategy": "mps"} if kind == "mps renamed" else {}
        plain = {GPU: draw.choice([0, 2, 4])} if kind == "both" else {}
        return labels | said, {f"{GPU}.shared": count * shares, **plain}
    if kind.startswith("single"):
        name = f"{product}-MIG-{draw.choice(PROFILES)}"
        said = (
            {**said, "nvidia.com/gpu.product": f"{name}-SHARED"}
            if "shared" in kind
            else {"nvidia.com/gpu.product": name}
        )
        return labels | said | {"nvidia.com/mig.strategy": "single"}, {GPU: draw.choice([7, 14])}
    if kind.startswith("mixed"):
        return mixed(draw, labels, shared="shared" in kind)
    if kind == "invalid":
        return labels | {"nvidia.com/gpu.product": f"{product}-MIG-INVALID"}, {GPU: draw.choice([0, 8])}
    if kind == "odd":
        more = {"nvidia.com/gpu.sharing-strategy": draw.choice(["mps", "time-slicing", "none", "tomorrow"])}
        return labels | more | {"nvidia.com/gpu.replicas": draw.choice(["0", "1", "2", "3"])}, {GPU: count}
    return labels, draw.choice([{GPU: 0}, {}]) if kind == "none" else {GPU: count}


def mixed(draw: random.Random, labels: Labels, shared: bool) -> tuple[Labels, Units]:
    """Draw a node of slices by name, each maybe time-sliced, under a name of its own or not."""
    resource, more = f"nvidia.com/mig-{draw.choice(PROFILES)}", {"nvidia.com/mig.strategy": "mixed"}
    if draw.random() < 0.3:
        more |= {
            f"{resource}.memory": str(slice_size(profile_of(resource))[1] * 97 // 100),
            "nvidia.com/gpu.replicas": "0",
        }
    offers = {GPU: draw.choice([0, 0, 4])}
    if not shared:
        return labels | more, offers | {resource: draw.choice([2, 7, 14])}
    more |= {f"{resource}.replicas": draw.choice(["2", "4"]), f"{resource}.sharing-strategy": "time-slicing"}
    return labels | more, offers | {resource + draw.choice(["", ".shared", ".shared"]): 14}


def cloud(draw: random.Random) -> tuple[Labels, Units]:
    """Draw a cloud's node without GPU Feature Discovery."""
    key = draw.choice(list(CLOUDS))
    labels = {key: draw.choice(CLOUDS[key])}
    if "k8s.aws" in key:
        labels["karpenter.k8s.aws/instance-gpu-memory"] = draw.choice(["40960", "81920", "22888"])
    if "google" in key and draw.random() < 0.4:
        labels["cloud.google.com/gke-gpu-sharing-strategy"] = draw.choice(["time-sharing", "mps"])
        labels["cloud.google.com/gke-max-shared-clients-per-gpu"] = "2"
    elif "google" in key and draw.random() < 0.3:
        labels["cloud.google.com/gke-gpu-partition-size"] = draw.choice(PROFILES)
    return labels | draw.choice([{}, driver_labels(draw)]), {GPU: draw.choice([8, 8, 2])}


def nobody(draw: random.Random) -> tuple[Labels, Units]:
    """Draw a GPU node that nobody labelled, or a node without GPUs."""
    return draw.choice([{}, {"accelerator": "nvidia"}]), draw.choice([{GPU: 8}, {GPU: 1}, {}])


def pods(draw: random.Random, where: RawNode) -> tuple[RawPod, ...]:
    """Draw what is bound to a node: nothing, some, or all of it."""
    found = []
    for resource, offered in where.allocatable.items():
        left = offered if draw.random() < 0.15 else draw.randint(0, offered) if draw.random() < 0.7 else 0
        while left > 0:
            units = draw.randint(1, min(4, left))
            memory = maybe(draw, 0.6, ["8Gi", "20Gi", "40Gi", "40Gi", "4915Mi", "lots"])
            found.append(RawPod(((resource, units),), memory, draw.random() < 0.1))
            left -= units
    return tuple(found)


def wish(draw: random.Random) -> Wish:
    """Draw what a pod asks."""
    words = [
        ("!" if draw.random() < 0.2 else "") + draw.choice([*WORDS * 3, *GLOBS]) for _ in range(draw.randint(1, 3))
    ]
    slices = [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.shared",
        "nvidia.com/mig-3g.40gb",
    ]
    made = Wish(
        resource=draw.choice([GPU] * 10 + [f"{GPU}.shared"] * 2 + slices),
        amount=draw.choice([1, 1, 1, 1, 2, 2, 4, 8, 9]),
        products=", ".join(words) if draw.random() < 0.15 else None,
        cuda=maybe(draw, 0.1, ["11.8", "12.0", "12.2", "12.4", "12.7", "12.9", "13.0", "13.3"]),
        image=maybe(draw, 0.35, IMAGES),
        capability=maybe(draw, 0.1, ["7.5", "8.0", "8.6", "9.0", "10.0"]),
        memory=maybe(
            draw, 0.35, ["2Gi", "4Gi", "4Gi", "8GB", "9000Mi", "10Gi", "16Gi", "24Gi", "40GB", "80Gi", "141Gi"]
        ),
        sharing=draw.choice(["Any"] * 6 + ["Exclusive", "Shared"]),
        mig_profile=maybe(draw, 0.08, ["1g.10gb", "1g.10gb.me", ">=1g.5gb", ">=1g.10gb", ">=3g.40gb", "2g.20gb"]),
        nvlink=draw.random() < 0.05,
        accept=draw.choice(["Native", "MinorVersion", "MinorVersion", "ForwardCompatible"]),
        policies=tuple(policy(draw) for _ in range(draw.choice([0, 0, 1, 1, 2]))),
    )
    if draw.random() < 0.25:
        made = replace(made, parts=parts(draw, made))
    return broken(draw, made) if draw.random() < 0.03 else made


def parts(draw: random.Random, of: Wish) -> tuple[Part, ...]:
    """Draw several containers, mostly of one resource; init containers and sidecars start in the order drawn."""
    found = [Part(of.resource, of.amount, of.image)]
    for _ in range(draw.randint(1, 3)):
        resource = draw.choice([of.resource] * 5 + [GPU, f"{GPU}.shared"])
        kind = draw.choice(["app", "init", "init", "sidecar"])
        found.append(Part(resource, draw.choice([0, 1, 1, 1, 2, 4]), maybe(draw, 0.2, IMAGES), kind))
    return tuple(found)


BROKEN = {
    "cuda": ("cuda", ["twelve", ">12", "12.x"]),
    "compute-capability": ("capability", ["x.y", "<8.0"]),
    "gpu-memory": ("memory", ["lots", "-4Gi"]),
    "sharing": ("sharing", ["Sometimes"]),
    "interconnect": ("nvlink", ["Ethernet"]),
    "mig-profile": ("mig_profile", ["big", ">1g.10gb"]),
    "products": ("products", ["A10*", "H100, L4*"]),
}


def broken(draw: random.Random, of: Wish) -> Wish:
    """Break one annotation."""
    key = draw.choice(list(BROKEN))
    name, texts = BROKEN[key]
    plain = {"sharing": "Any", "nvlink": False}.get(name)
    return replace(of, broken=((key, draw.choice(texts)),), **{name: plain})  # type: ignore[arg-type]


def policy(draw: random.Random) -> Policy:
    """Draw a policy; it says one to three things."""
    full = Policy(
        allow=some(draw, 1, ["H100", "A100", "L4", "T4", "H200", "A10", *GLOBS[:2]]),
        deny=some(draw, 1, ["T4", "V100", "NVIDIA-L4", "*-SXM4-*"]),
        memory=draw.choice(["10Gi", "16Gi", "24Gi"]),
        capability=draw.choice(["7.5", "8.0", "9.0"]),
        cuda=draw.choice(["11.8", "12.2", "12.8"]),
        sharing=draw.choice(["Any", "Exclusive", "Shared"]),
        nvlink=True,
        unknown=draw.choice(["Refuse", "Refuse", "Accept"]),
        labels=(("zone", draw.choice(ZONES)),),
        expressions=tuple(expression(draw) for _ in range(draw.randint(1, 2))),
        forms=tuple(sorted({*some(draw, 1, ["SXM", "PCIe", "PCIe", "superchip", "SoC"])})),
        ill=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
        ailing=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
        unhealthy=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
    )
    names = ["allow", "deny", "memory", "capability", "cuda", "sharing", "nvlink", "labels", "expressions", "forms"]
    names = draw.sample([*names, *["unknown", "ill", "ailing", "unhealthy"] * 2], draw.choice([1, 1, 2, 3]))
    action = draw.choice(["Enforce"] * 8 + ["Warn"])
    return replace(Policy(action=action), **{name: getattr(full, name) for name in names})


def expression(draw: random.Random) -> tuple[str, str, tuple[str, ...]]:
    """Draw a requirement of a node selector."""
    operator = draw.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    key, values = draw.choice([("zone", ZONES), ("tier", ["gold", "silver"]), ("nvidia.com/mig.strategy", ["single"])])
    return key, operator, tuple(draw.sample(values, 1)) if operator.endswith("In") else ()

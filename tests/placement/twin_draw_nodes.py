# SPDX-License-Identifier: Apache-2.0
"""Random nodes for the twin, labelled by GPU Feature Discovery, clouds, other vendors, HAMi, or not at all.

Counts, replicas and memory agree with one another as NVIDIA's own components write them (k8s-device-plugin
internal/lm/resource.go), except where a draw is meant to be odd.
"""

import json
import random
from collections.abc import Sequence
from typing import TypeVar

from tests.placement.twin_cuda import facts
from tests.placement.twin_node import profile_of, slice_size
from tests.placement.twin_products import bare as name_of
from tests.placement.twin_products import product_row
from tests.placement.twin_world import GPU, RawDevice, RawNode

T = TypeVar("T")
Labels = dict[str, str]
Units = dict[str, int]

CONDITIONS = [
    "AcceleratedHardwareReady",
    "GPUMissing",
    "SysLogsXIDError",
    "nvidia.com/GPUReady",
    "IBLinkFlapping",
    "Ready",
]
DRIVERS = [
    "450.80.02",
    "470.57.02",
    "510.47.03",
    "525.60.13",
    "525.85.12",
    "530.41.03",
    "535.54.03",
    "535.86.10",
    "545.23.08",
    "550.54.14",
    "550.54.15",
    "565.57.01",
    "570.86.15",
    "570.124.06",
    "575.57.08",
    "580.65.06",
    "580.95.05",
    "590.48.01",
    "610.43.02",
]
R580 = ("580.65.06", "580.95.05")
"""The last branch for Maxwell, Pascal and Volta, which no toolkit from CUDA 13.0 on serves."""
LAST_ON_R580 = ("Tesla-V100-SXM2-16GB", "Tesla-P100-PCIE-16GB")
POPULAR = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-L4", "NVIDIA-A10", "NVIDIA-H200"]
SELDOM = [
    *["NVIDIA-GeForce-RTX-4090"] * 4,
    "NVIDIA-GB10",
    "NVIDIA-B200",
    *["Tesla-V100-SXM2-16GB"] * 4,
    "Tesla-P100-PCIE-16GB",
    "NVIDIA-A10-24Q",
    "NVIDIA-A10-8Q",
    "GRID-A100DX-80C",
    "GRID-A100-3-20C",
    "NVIDIA-H100-96GB-HBM3",
    "NVIDIA-H200-SXM-141GB",
]
PROFILES = ["1g.5gb", "1g.10gb", "1g.10gb", "1g.10gb.me", "2g.20gb", "3g.40gb", "7g.80gb", "1g.24gb"]
STATES = ["success", "success", "pending", "failed", "rebooting"]
UPGRADES = ["", "upgrade-done", "upgrade-required", "tomorrow", "drain-required", "upgrade-failed", "cordon-required"]
PAUSES = ["true", "paused-for-mig-change", "paused-for-driver-upgrade", "false"]
MEMORIES = ["9856", "15360", "23028", "40960", "76185", "76186", "81559", "0", "odd"]
REPORTED = {"450": "11.0", "525": "12.0", "535": "12.2", "550": "12.4", "570": "12.8", "580": "13.0", "610": "13.3"}
"""The CUDA that drivers of a branch report (cuda_driver.yaml driver_branches); the label shows the same."""
ZONES = ["a", "b", "c"]
TYPES = "node.kubernetes.io/instance-type"
RUNTIME = "nvidia.com/cuda.runtime-version"


def maybe(draw: random.Random, share: float, choices: Sequence[T]) -> T | None:
    """Draw one of the choices with this probability, otherwise None."""
    return draw.choice(choices) if draw.random() < share else None


def some(draw: random.Random, share: float, choices: Sequence[T]) -> tuple[T, ...]:
    """Draw one to three of the choices with this probability, otherwise none."""
    return tuple(draw.choice(choices) for _ in range(draw.randint(1, 3))) if draw.random() < share else ()


def node(draw: random.Random) -> RawNode:
    """Draw a node."""
    kind = draw.choice(
        ["gfd"] * 22 + ["cloud"] * 8 + ["both", "nobody", "nobody", "hami", "hami", "vendor", "vendor", "dra", "dra"]
    )
    kinds = {
        "gfd": gfd,
        "both": gfd,
        "hami": gfd_whole,
        "cloud": cloud,
        "nobody": unlabelled,
        "vendor": vendor,
        "dra": bare,
    }
    labels, offers = kinds[kind](draw)
    if kind == "both":
        labels = cloud(draw)[0] | labels
    if draw.random() < 0.15:
        labels |= evidence(draw)
    if kind in ("cloud", "vendor", "nobody") and draw.random() < 0.15:
        offers = draw.choice([{}, dict.fromkeys(offers, 0)])
    if draw.random() < 0.8:
        labels["zone"] = draw.choice(ZONES)
    if draw.random() < 0.8:
        labels["kubernetes.io/arch"] = draw.choice(["amd64", "amd64", "arm64"])
    if draw.random() < 0.3:
        labels["tier"] = draw.choice(["gold", "silver"])
    health = (draw.choice([0, 0, 0, 1, 2]), draw.choice([0, 0, 1, 3])) if draw.random() < 0.4 else None
    own = random.Random(repr((labels, offers)))  # so that all else is drawn as it was before there were conditions
    reported = own.sample(CONDITIONS, own.choice([1, 1, 2])) if own.random() < 0.15 else []
    conditions = tuple((name, own.choice(["True", "False", "Unknown"])) for name in reported)
    if kind == "hami":
        gpus = offers[GPU]
        units = {GPU: gpus * draw.choice([2, 10])}
        return RawNode(labels, units, health=health, hami=registered(draw, gpus), conditions=conditions)
    if kind == "dra":
        return RawNode(labels, {}, health=health, devices=devices(draw), conditions=conditions)
    capacity = {}
    if draw.random() < 0.25:
        capacity = {key: amount + draw.choice([0, 0, 1, 2, 8]) for key, amount in offers.items()}
    return RawNode(labels, offers, capacity, health, conditions=conditions)


EVIDENCE = [
    {"karpenter.k8s.aws/instance-gpu-count": "8", "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    {"karpenter.k8s.aws/instance-gpu-count": "1"},
    {"karpenter.k8s.aws/instance-gpu-count": "4", "karpenter.k8s.aws/instance-gpu-manufacturer": "amd"},
    {"karpenter.azure.com/sku-gpu-count": "0"},
    {"cloud.google.com/gke-accelerator-count": "8", "cloud.google.com/gke-accelerator": "nvidia-l4"},
    {"nvidia.com/gpu.present": "true"},
    {"nvidia.com/gpu.present": "false"},
    {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.workload.config": "vm-passthrough"},
    {"feature.node.kubernetes.io/pci-10de.present": "true"},
    {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    {"feature.node.kubernetes.io/pci-0680_10de.present": "true"},
    {"feature.node.kubernetes.io/pci-1200_1002.present": "true"},
    {"feature.node.kubernetes.io/pci-0300_1002.present": "true"},
    {"feature.node.kubernetes.io/pci-1002_74a1.present": "true"},
    {"feature.node.kubernetes.io/pci-0300_8086.present": "true"},
    {"feature.node.kubernetes.io/amd-gpu": "true"},
    {"beta.amd.com/gpu.device-id.74a1": "8"},
    {"intel.feature.node.kubernetes.io/gpu": "true"},
    {"gpu.intel.com/device-id.0380-0bd5.count": "4"},
    {"doks.digitalocean.com/gpu-brand": "amd"},
    {TYPES: "g5.12xlarge"},
    {TYPES: "g4ad.xlarge"},
]
"""Labels that promise GPUs, or none."""


def evidence(draw: random.Random) -> Labels:
    """Draw labels that promise GPUs beside what the node has anyway."""
    return dict(draw.choice(EVIDENCE))


def gfd(draw: random.Random) -> tuple[Labels, Units]:
    """Draw what GPU Feature Discovery and the operators write, with gaps, deprecated forms and oddities."""
    return offered(draw, model_labels(draw))


def gfd_whole(draw: random.Random) -> tuple[Labels, Units]:
    """Draw whole GPUs, with or without the labels of GPU Feature Discovery."""
    count = draw.choice([8, 4, 1])
    return draw.choice([{}, model_labels(draw) | {"nvidia.com/gpu.count": str(count)}]), {GPU: count}


def registered(draw: random.Random, gpus: int) -> str:
    """Write HAMi's annotation in its present form, or in that of HAMi up to v2.5."""
    if draw.random() < 0.5:
        return json.dumps([{"id": f"GPU-{index}", "count": 10, "devmem": 40960} for index in range(gpus)])
    return "".join(f"GPU-{index},10,40960,100,NVIDIA-A100,0,true:" for index in range(gpus))


def model_labels(draw: random.Random) -> Labels:
    """Draw the labels of a node's one GPU model, without its count."""
    rows = facts("gpu_products.yaml")["products"]
    share = draw.random()
    product = draw.choice(POPULAR if share < 0.5 else SELDOM) if share < 0.75 else draw.choice(rows)["product"]
    row = product_row(name_of(product)) or {}
    label = draw.choice([product] * 8 + [product.removeprefix("NVIDIA-")] + ["NVIDIA-XYZ-9000"])
    old = product in LAST_ON_R580 and draw.random() < 0.5
    labels = driver_labels(draw, R580 if old else DRIVERS) | {"nvidia.com/gpu.product": label}
    if draw.random() < 0.5:
        major, minor = str(row["compute_capability"]).split(".")
        labels |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    optional = {
        "nvidia.com/gpu.memory": maybe(draw, 0.3, MEMORIES),
        "nvidia.com/mig.config.state": maybe(draw, 0.1, STATES),
        "nvidia.com/gpu-driver-upgrade-state": maybe(draw, 0.1, UPGRADES),
        "nvidia.com/gpu.deploy.device-plugin": maybe(draw, 0.05, PAUSES),
    }
    wished = maybe(draw, 0.08, ["all-1g.10gb", "all-3g.40gb", "all-disabled", "custom", "all-balanced"])
    optional["nvidia.com/mig.config"] = wished
    if wished:
        optional["nvidia.com/gpu.deploy.mig-manager"] = maybe(draw, 0.6, ["true", "true", "false"])
        optional["nvidia.com/mig.capable"] = maybe(draw, 0.6, ["true", "true", "false"])
    return labels | {key: value for key, value in optional.items() if value is not None}


def driver_labels(draw: random.Random, drivers: Sequence[str] = DRIVERS) -> Labels:
    """Draw the driver's labels, in full, in parts, in deprecated parts, or none, and sometimes its highest CUDA."""
    version = draw.choice(drivers)
    parts = version.split(".")
    new = {f"nvidia.com/cuda.driver-version.{k}": v for k, v in zip(("major", "minor", "revision"), parts, strict=True)}
    old = {f"nvidia.com/cuda.driver.{k}": v for k, v in zip(("major", "minor", "rev"), parts, strict=True)}
    full = {"nvidia.com/cuda.driver-version.full": version}
    written = draw.choice([full, full, full, new, old, {**new, **old, **full}, {**new, **old}, {**old, **full}, {}])
    if written and parts[0] in REPORTED and draw.random() < 0.3:
        major, minor = REPORTED[parts[0]].split(".")
        written = written | {f"{RUNTIME}.major": major, f"{RUNTIME}.minor": minor}
    return written


def offered(draw: random.Random, labels: Labels) -> tuple[Labels, Units]:
    """Draw how the GPUs are offered: whole, shared, renamed, as MIG slices of either strategy, or of two models."""
    kinds = ["whole"] * 7 + ["shared"] * 5 + ["mps"] * 2 + ["renamed", "renamed", "both", "mps renamed", "odd", "none"]
    kinds += ["single"] * 3 + ["single shared", "mixed", "mixed", "mixed shared", "mixed shared", "invalid", "unnamed"]
    kind, count = draw.choice([*kinds, "models", "models"]), draw.choice([8, 8, 8, 4, 1])
    shares, product = draw.choice([2, 4]), labels["nvidia.com/gpu.product"]
    counted = {"nvidia.com/gpu.count": str(count)} if draw.random() < 0.7 else {}
    sharing = counted | {"nvidia.com/gpu.replicas": str(shares), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    if kind in ("shared", "mps"):
        sharing |= {"nvidia.com/gpu.product": f"{product}-SHARED"}
        sharing |= {"nvidia.com/gpu.sharing-strategy": "mps"} if kind == "mps" else {}
        sharing = dict(draw.sample(sorted(sharing.items()), k=len(sharing) - draw.choice([0, 0, 0, 1]))) | counted
        return labels | sharing, {GPU: count * shares}
    if kind in ("renamed", "both", "mps renamed"):
        sharing |= {"nvidia.com/gpu.sharing-strategy": "mps"} if kind == "mps renamed" else {}
        plain = {GPU: draw.choice([0, 2, 4])} if kind == "both" else {}
        return labels | sharing, {f"{GPU}.shared": count * shares, **plain}
    if kind.startswith("single"):
        return single(draw, labels, sharing, shares if "shared" in kind else 1)
    if kind.startswith("mixed"):
        return mixed(draw, labels | counted, shared="shared" in kind)
    if kind == "invalid":
        return labels | {"nvidia.com/gpu.product": f"{product}-MIG-INVALID"}, {GPU: draw.choice([0, 8])}
    if kind == "unnamed":  # every GPU has MIG enabled, and the strategy is none
        none = {"nvidia.com/gpu.replicas": "0", "nvidia.com/gpu.sharing-strategy": "none"}
        return labels | counted | none, {GPU: count}
    if kind == "models":
        of_one = {"nvidia.com/gpu.count": str(count), "nvidia.com/gpu.replicas": "1"}
        shared = draw.choice([False, False, True])
        more = sharing | {"nvidia.com/gpu.product": f"{product}-SHARED"} if shared else of_one
        return labels | of_one | more, {GPU: (count + draw.choice([1, 2, 4])) * (shares if shared else 1)}
    if kind == "odd":
        more = {"nvidia.com/gpu.sharing-strategy": draw.choice(["mps", "time-slicing", "none", "tomorrow"])}
        return labels | counted | more | {"nvidia.com/gpu.replicas": draw.choice(["1", "2", "3"])}, {GPU: count}
    return labels | counted, draw.choice([{GPU: 0}, {}]) if kind == "none" else {GPU: count}


def single(draw: random.Random, labels: Labels, sharing: Labels, shares: int) -> tuple[Labels, Units]:
    """Draw a node of strategy single: equal slices under the plain resource name, whose gpu.count counts slices.

    Shares of slices may have a resource name of their own.
    """
    name, units = f"{labels['nvidia.com/gpu.product']}-MIG-{draw.choice(PROFILES)}", draw.choice([7, 14])
    more = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": str(units), "nvidia.com/gpu.product": name}
    if shares == 1:
        return labels | more, {GPU: units}
    sharing = {**sharing, **more, "nvidia.com/gpu.replicas": str(shares)}
    if draw.random() < 0.4:
        return labels | sharing, {f"{GPU}.shared": units * shares}
    return labels | sharing | {"nvidia.com/gpu.product": f"{name}-SHARED"}, {GPU: units * shares}


def mixed(draw: random.Random, labels: Labels, shared: bool) -> tuple[Labels, Units]:
    """Draw a node of strategy mixed: slices by name, perhaps time-sliced, and perhaps renamed."""
    resource, more = f"nvidia.com/mig-{draw.choice(PROFILES)}", {"nvidia.com/mig.strategy": "mixed"}
    offers = {GPU: draw.choice([0, 0, 4])}
    if draw.random() < 0.4:
        memory = slice_size(profile_of(resource))[1] * draw.choice([97, 90, 52]) // 100
        more |= {f"{resource}.memory": str(memory)}
    if not offers[GPU] and draw.random() < 0.5:  # every GPU is cut into slices
        more |= {"nvidia.com/gpu.replicas": "0", "nvidia.com/gpu.sharing-strategy": "none"}
    if not shared:
        return labels | more, offers | {resource: draw.choice([2, 7, 14])}
    more |= {f"{resource}.replicas": draw.choice(["2", "4"]), f"{resource}.sharing-strategy": "time-slicing"}
    return labels | more, offers | {resource + draw.choice(["", ".shared", ".shared"]): 14}


def cloud(draw: random.Random) -> tuple[Labels, Units]:
    """Draw a cloud's node without GPU Feature Discovery: with a product label of the cloud, an instance type, or
    both."""
    labels = draw.choice([dialect, dialect, instance, agreeing])(draw)
    return labels | draw.choice([{}, driver_labels(draw)]), {GPU: draw.choice([8, 8, 2])}


def dialect(draw: random.Random) -> Labels:
    """Draw a product label of one of the clouds; a few have a value that no table knows."""
    spoken = draw.choice(facts("clouds.yaml")["dialects"])
    word = draw.choice([*spoken["values"], "tomorrow"])
    labels = {draw.choice([spoken["key"], *spoken.get("other_keys", ())]): word}
    if "memory_key" in spoken and draw.random() < 0.8:
        labels[spoken["memory_key"]] = draw.choice(["40960", "81920", "22888", "16384", "2861"])
    if spoken["name"] == "GKE" and draw.random() < 0.4:
        labels["cloud.google.com/gke-gpu-sharing-strategy"] = draw.choice(["time-sharing", "mps"])
        labels["cloud.google.com/gke-max-shared-clients-per-gpu"] = "2"
    elif spoken["name"] == "GKE" and draw.random() < 0.3:
        labels["cloud.google.com/gke-gpu-partition-size"] = draw.choice(PROFILES)
    return labels


def instance(draw: random.Random) -> Labels:
    """Draw an instance type of the table, or one that is not in it."""
    rows = facts("clouds.yaml")["instance_types"]["rows"]
    written = draw.choice(draw.choice(rows)["types"]).replace("*", draw.choice(["xlarge", "2", "96"]))
    return {TYPES: draw.choice([written] * 9 + ["m5.large"])}


def agreeing(draw: random.Random) -> Labels:
    """Draw an instance type together with a product label of a cloud that may mean the same products."""
    row = draw.choice(facts("clouds.yaml")["instance_types"]["rows"])
    labels = {TYPES: row["types"][0].replace("*", "xlarge")}
    for spoken in facts("clouds.yaml")["dialects"]:
        for word, meant in spoken["values"].items():
            listed = [meant] if isinstance(meant, str) else list(meant.values() if isinstance(meant, dict) else meant)
            if set(listed) & set(row["products"]) and draw.random() < 0.3:
                return labels | {spoken["key"]: word}
    return labels


def vendor(draw: random.Random) -> tuple[Labels, Units]:
    """Draw another vendor's node as its own labeller and device plugin describe it."""
    if draw.random() < 0.6:
        named = {"amd.com/gpu.product-name": draw.choice(["AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI250X"])}
        return draw.choice([{}, named, named | {"amd.com/gpu.vram": draw.choice(["192G", "64G"])}]), {"amd.com/gpu": 8}
    units = draw.choice([2, 4])
    named = {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/memory.max": str(units * 48 * 2**30)}
    return draw.choice([{}, named]), {"gpu.intel.com/i915": units}


def bare(draw: random.Random) -> tuple[Labels, Units]:
    """Draw a node on which no device plugin runs."""
    return draw.choice([{}, driver_labels(draw)]), {}


def devices(draw: random.Random) -> tuple[RawDevice, ...]:
    """Draw the GPUs of a ResourceSlice, of one or several products. Versions are semantic, without leading zeros."""
    rows = [row for row in facts("gpu_products.yaml")["products"] if row["product"] in (*POPULAR, *SELDOM)]
    drawn = [draw.choice(rows) for _ in range(draw.choice([1, 1, 2, 3]))]
    version = maybe(draw, 0.8, [".".join(str(int(part)) for part in text.split(".")) for text in DRIVERS])
    return tuple(
        RawDevice(
            product=row["product"].replace("-", " "),
            driver=version,
            capability=maybe(draw, 0.8, [f"{row['compute_capability']}.0"]),
            memory=row["memory_mib"],
        )
        for row in drawn
    )


def unlabelled(draw: random.Random) -> tuple[Labels, Units]:
    """Draw a GPU node without GPU labels, or a node without GPUs."""
    return draw.choice([{}, {"accelerator": "nvidia"}]), draw.choice([{GPU: 8}, {GPU: 1}, {}])

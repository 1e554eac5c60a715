# SPDX-License-Identifier: Apache-2.0
"""What a raw node's labels promise, and what its counts leave possible; from gpu_evidence.yaml in the simplest way."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.placement.twin_cuda import facts
from tests.placement.twin_world import GPU, SHARED, SLICES, RawNode

TYPES = "node.kubernetes.io/instance-type"
NONE_SAID = ("", "0", "false")
WHOLE = {"nvidia": "nvidia.com", "amd": "amd.com", "intel": "gpu.intel.com", "habana": "habana.ai"}


def positive(text: str | None) -> int | None:
    """Read a positive integer; any other text counts as absent."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) > 0 else None


def said(labels: dict[str, str]) -> Iterator[tuple[str, int | None, bool]]:
    """Give family, number (None if none is told) and whether it is the machine's, for each label that promises GPUs."""
    table = facts("gpu_evidence.yaml")
    for row in table["labels"]:
        keys = sorted(key for key in labels if key == row.get("key") or key.startswith(row.get("prefix", "\0")))
        for key in keys:
            number = positive(labels[key])
            if labels[key].lower() in NONE_SAID or (row.get("counts") and not number):
                continue
            text = labels.get(row.get("family_key", key), "").lower()
            family = row.get("family") or next(
                (name for pattern, name in row["families"].items() if re.fullmatch(pattern.lower(), text)), None
            )
            if family:
                yield family, number if row.get("counts") else None, bool(row.get("machine"))
    for key in labels:
        match = re.fullmatch(re.escape(table["pci"]["prefix"]) + r"([0-9a-f_]+)\..*", key)
        if match and labels[key] == "true" and (family := pci_family(match[1])):
            yield family, None, False
    if machine := machine_row(labels.get(TYPES, "")):
        family = "amd" if machine["products"][0].startswith("AMD-") else "nvidia"
        number = next((row["gpus"] for row in table["machine_gpus"] if named(labels[TYPES], row)), None)
        yield family, number, number is not None


def pci_family(fields: str) -> str | None:
    """Name the family of a display device by the fields of its label: class and vendor, vendor, or vendor and
    device."""
    for row in facts("gpu_evidence.yaml")["pci"]["vendors"]:
        for group in row["classes"]:
            if re.match(f"{group}_{row['vendor']}(_|$)", fields):
                return str(row["family"])
        if row.get("alone") and re.match(f"{row['vendor']}(_|$)", fields):
            return str(row["family"])
        if any(re.search(f"(^|_){row['vendor']}(_.*)?_{device}(_|$)", fields) for device in row.get("devices", ())):
            return str(row["family"])
    return None


@cache
def machine_row(name: str) -> dict[str, Any]:
    """Return the first row of instance types that matches a name."""
    return next((dict(row) for row in facts("clouds.yaml")["instance_types"]["rows"] if named(name, row)), {})


def named(name: str, row: dict[str, Any]) -> bool:
    """Tell whether a row is about a machine type."""
    return any(re.fullmatch(".*".join(map(re.escape, text.split("*"))), name) for text in row["types"])


def absent(resource: str, node: RawNode) -> bool:
    """Tell whether labels promise GPUs of a resource's vendor, of which the node offers none in any form."""
    domain = resource.split("/")[0]
    if node.devices or node.labels.get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID"):
        return False
    machines = node.labels.get("nvidia.com/gpu.workload.config") in ("vm-passthrough", "vm-vgpu")
    if domain not in {WHOLE[family] for family, _, _ in said(node.labels) if not (machines and family == "nvidia")}:
        return False
    ours = [name for name in node.resources() if name.split("/")[0] == domain]
    return not any(node.offers(name) or node.withdrawn(name) for name in ours)


def count_doubt(node: RawNode, candidates: list[str]) -> tuple[str, int]:
    """Say what more units than labelled GPUs mean: `shares` of so many GPUs, `several` causes, `more` GPUs, or nothing.

    `candidates` are the bare products that the machine may have by other labels than GPU Feature Discovery's.
    """
    count = positive(node.labels.get("nvidia.com/gpu.count"))
    label = node.labels.get("nvidia.com/gpu.product", "")
    names = {*node.allocatable, *node.capacity}
    sliced = any(name.startswith(SLICES) for name in names) or node.labels.get("nvidia.com/mig.strategy") == "mixed"
    if count is None or sliced or node.hami or label.endswith("-MIG-INVALID"):
        return "", 0
    plain, renamed = node.in_all(GPU), node.in_all(GPU + SHARED)
    replicas = labelled_replicas(node)
    if plain + renamed <= count * replicas:
        return "", 0
    gpus: int | None = None
    if renamed and not plain and replicas == 1:
        gpus = count
    elif "-MIG-" not in label and node.labels.get("nvidia.com/gpu.replicas") != "0":
        other = candidates and label and bare(label) not in candidates
        gpus = None if other else next((number for _, number, machine in said(node.labels) if machine and number), None)
    if gpus is None or gpus < count:
        return "several", 0
    return ("more", 0) if plain + renamed <= gpus * replicas else ("shares", gpus)


def labelled_replicas(node: RawNode) -> int:
    """Read the number of shares of one GPU by label."""
    keys = ("nvidia.com/gpu.replicas", *(row["replicas_key"] for row in facts("clouds.yaml")["sharing_labels"]))
    return next((shares for key in keys if (shares := positive(node.labels.get(key)))), 1)


def bare(label: str) -> str:
    """Drop the vendor prefix and the sharing suffix of a product label."""
    return re.sub(r"^(NVIDIA|Tesla)-", "", label.removesuffix("-SHARED")).lower()


def layout_to_come(node: RawNode) -> bool:
    """Tell whether a wished MIG layout is not made (docs/reference/compatibility.md#node-states)."""
    labels, wished = node.labels, node.labels.get("nvidia.com/mig.config", "")
    if wished in ("", *facts("mig_profiles.yaml")["layouts_without_slices"]["names"]):
        return False
    size = re.search(r"\dg\.\d+gb", wished)
    profiles = [name.removeprefix(SLICES) for name in node.allocatable if name.startswith(SLICES) and node.offers(name)]
    if match := re.search(r"-MIG-(\dg.*?)(-SHARED)?$", labels.get("nvidia.com/gpu.product", "")):
        profiles.append(match[1])
    if key := next(
        (row["slice_key"] for row in facts("clouds.yaml")["dialects"] if row.get("slice_key") in labels), ""
    ):
        profiles += [labels[key]] if "nvidia.com/gpu.product" not in labels else []
    if any(size is None or profile.startswith(size[0]) for profile in profiles):
        return False
    if labels.get("nvidia.com/mig.config.state") == "success":
        strategy = labels.get("nvidia.com/mig.strategy")
        found = "nvidia.com/gpu.product" in labels
        tells = strategy == "mixed" or (strategy == "single" and found)
        tells = tells or (not found and labels.get("nvidia.com/gpu.deploy.gpu-feature-discovery", "false") != "false")
        whole = node.offers(GPU) > 0 and not labels.get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID")
        return bool(size and tells and whole)
    manager, capable = (labels.get(f"nvidia.com/{key}") for key in ("gpu.deploy.mig-manager", "mig.capable"))
    if capable == "false" or manager == "false" or (manager is None and size is None):
        return False
    parts = ("device-plugin", "driver", "container-toolkit", "operator-validator")
    operated = manager is not None or any(f"nvidia.com/gpu.deploy.{part}" in labels for part in parts)
    return operated or (capable is None and "nvidia.com/gpu.product" not in labels)

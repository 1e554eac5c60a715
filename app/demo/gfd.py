# SPDX-License-Identifier: Apache-2.0
"""Makes node labels as GPU Feature Discovery and mig-manager write them (NVIDIA/k8s-device-plugin internal/lm).

The label that changes at every run, nvidia.com/gfd.timestamp, is left out, as with `--no-timestamp`.
"""

from app.demo.notation import MIG, DemoGPU, NodePool, Slice

Labels = dict[str, str]

WHOLE_GPU = "nvidia.com/gpu"
"""The resource of the sample and simulated fleets, whose unit is a whole GPU unless the node shares or slices them."""

MIG_CAPABLE = ("8.0", "9.0", "10.0", "10.3")
"""Compute capabilities of the MIG-capable GPUs in the sample fleets (MIG user guide, supported GPUs)."""


def product_label(gpu: DemoGPU) -> str:
    """Return a GPU's name as a label value: each run of spaces becomes `-`."""
    return "-".join(gpu.name.split())


def node_labels(pool: NodePool) -> Labels:
    """Return the labels that GPU Feature Discovery and mig-manager write on a node of a pool."""
    if pool.gpu is None:
        return {}
    labels = _manager_labels(pool.mig) if pool.mig else {}
    if pool.gfd == "none":
        return labels
    old = pool.gfd == "old"
    labels |= _versions(pool.driver, pool.cuda, old) | _gpu_labels(pool, pool.gpu, old)
    if pool.mig:
        labels["nvidia.com/mig.strategy"] = pool.mig.strategy
        labels |= _mig_labels(pool.mig, product_label(pool.gpu), pool)
    if pool.clique:
        labels["nvidia.com/gpu.clique"] = pool.clique
    if old:
        labels = {key: value for key, value in labels.items() if not key.endswith(".sharing-strategy")}
    return labels


def _manager_labels(mig: MIG) -> Labels:
    labels = {"nvidia.com/mig.config": mig.config, "nvidia.com/mig.config.state": mig.state}
    return {key: value for key, value in labels.items() if value is not None}


def _versions(driver: str, cuda: str, old: bool) -> Labels:
    """Return the version labels of v0.15 and later and the deprecated ones, which v0.20 still writes."""
    fields = (*driver.split("."), "", "")[:3]
    runtime = cuda.split(".")
    labels = _numbered("nvidia.com/cuda.driver", ("major", "minor", "rev"), fields)
    labels |= _numbered("nvidia.com/cuda.runtime", ("major", "minor"), runtime)
    if old:
        return labels
    labels |= _numbered("nvidia.com/cuda.driver-version", ("full", "major", "minor", "revision"), (driver, *fields))
    return labels | _numbered("nvidia.com/cuda.runtime-version", ("full", "major", "minor"), (cuda, *runtime))


def _numbered(prefix: str, parts: tuple[str, ...], values: tuple[str, ...] | list[str]) -> Labels:
    return {f"{prefix}.{part}": value for part, value in zip(parts, values, strict=True)}


def _gpu_labels(pool: NodePool, gpu: DemoGPU, old: bool) -> Labels:
    """Return the labels of whole GPUs. Replicas is 0 if all GPUs are sliced, because sharing is not examined then."""
    shared = pool.sharing
    sliced = pool.mig is not None and bool(pool.mig.slices) and not pool.mig.whole
    major, minor = gpu.compute.split(".")
    labels = {
        "nvidia.com/gpu.product": product_label(gpu) + ("-SHARED" if shared and not shared.renamed else ""),
        "nvidia.com/gpu.count": str(pool.gpus),
        "nvidia.com/gpu.memory": str(gpu.memory),
        "nvidia.com/gpu.replicas": "0" if sliced else str(shared.replicas if shared else 1),
        "nvidia.com/gpu.sharing-strategy": shared.strategy if shared and not sliced else "none",
        "nvidia.com/gpu.family": _family(gpu.compute, old),
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/gpu.machine": pool.machine,
        "nvidia.com/mig.capable": str(gpu.compute in MIG_CAPABLE).lower(),
    }
    if not old:
        mps = shared is not None and shared.strategy == "mps"
        labels |= {"nvidia.com/gpu.mode": "compute", "nvidia.com/mps.capable": str(mps).lower()}
    return labels


def _family(compute: str, old: bool) -> str:
    """Return the architecture (internal/lm/resource.go); ada-lovelace is distinct from ampere since v0.17.1."""
    if compute == "7.5":
        return "turing"
    if compute == "8.9" and not old:
        return "ada-lovelace"
    return {"7": "volta", "8": "ampere", "9": "hopper", "10": "blackwell", "12": "blackwell"}[compute.split(".")[0]]


def _mig_labels(mig: MIG, product: str, pool: NodePool) -> Labels:
    """Return the labels of MIG slices; with strategy single they are the labels of the whole GPU."""
    if mig.invalid:
        return _attributes("gpu", {"product": f"{product}-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0",
                                   "sharing-strategy": ""})  # fmt: skip
    labels: Labels = {}
    for profile, mig_slice in mig.slices.items():
        name = "gpu" if mig.strategy == "single" else f"mig-{profile.replace('+', '.')}"
        values = _slice_attributes(profile, mig_slice) | {"product": f"{product}-MIG-{profile.replace('+', '.')}"}
        if pool.sharing and mig.strategy == "single":
            values |= {"replicas": str(pool.sharing.replicas), "sharing-strategy": pool.sharing.strategy}
            values["product"] += "" if pool.sharing.renamed else "-SHARED"
        labels |= _attributes(name, values)
    return labels


def _slice_attributes(profile: str, mig_slice: Slice) -> Labels:
    """Return the attributes of a slice; all offered profiles have as many compute slices as GPU slices."""
    copy, decoder, encoder, jpeg, ofa = map(str, mig_slice.engines)
    return {
        "count": str(mig_slice.count),
        "memory": str(mig_slice.memory),
        "replicas": "1",
        "sharing-strategy": "none",
        "multiprocessors": str(mig_slice.multiprocessors),
        "slices.gi": profile.split("g.")[0],
        "slices.ci": profile.split("g.")[0],
        "engines.copy": copy,
        "engines.decoder": decoder,
        "engines.encoder": encoder,
        "engines.jpeg": jpeg,
        "engines.ofa": ofa,
    }


def _attributes(resource: str, values: Labels) -> Labels:
    return {f"nvidia.com/{resource}.{name}": value for name, value in values.items()}

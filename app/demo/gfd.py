# SPDX-License-Identifier: Apache-2.0
"""Node labels as GPU Feature Discovery and mig-manager write them (NVIDIA/k8s-device-plugin internal/lm).

The one that changes at every run, nvidia.com/gfd.timestamp, is left out, as with `--no-timestamp`.
"""

from app.demo.notation import MIG, DemoGPU, NodePool, Slice

Labels = dict[str, str]

MIG_CAPABLE = ("8.0", "9.0", "10.0", "10.3")
"""Compute capabilities of the GPUs in these fleets that can do MIG (MIG user guide, supported GPUs)."""


def product_label(gpu: DemoGPU) -> str:
    """Write a GPU's name as a label does: runs of spaces become `-`."""
    return "-".join(gpu.name.split())


def node_labels(pool: NodePool) -> Labels:
    """Make what GPU Feature Discovery and mig-manager write on a node of a pool."""
    if pool.gpu is None:
        return {}
    made = _manager_labels(pool.mig) if pool.mig else {}
    if pool.gfd == "none":
        return made
    old = pool.gfd == "old"
    made |= _versions(pool.driver, pool.cuda, old) | _gpu_labels(pool, pool.gpu, old)
    if pool.mig:
        made["nvidia.com/mig.strategy"] = pool.mig.strategy
        made |= _mig_labels(pool.mig, product_label(pool.gpu), pool)
    if pool.clique:
        made["nvidia.com/gpu.clique"] = pool.clique
    if old:
        made = {key: value for key, value in made.items() if not key.endswith(".sharing-strategy")}
    return made


def _manager_labels(mig: MIG) -> Labels:
    found = {"nvidia.com/mig.config": mig.config, "nvidia.com/mig.config.state": mig.state}
    return {key: value for key, value in found.items() if value is not None}


def _versions(driver: str, cuda: str, old: bool) -> Labels:
    """Write the names of v0.15 and later and, as v0.20 still does, the deprecated ones before them."""
    fields = (*driver.split("."), "", "")[:3]
    runtime = cuda.split(".")
    made = _numbered("nvidia.com/cuda.driver", ("major", "minor", "rev"), fields)
    made |= _numbered("nvidia.com/cuda.runtime", ("major", "minor"), runtime)
    if old:
        return made
    made |= _numbered("nvidia.com/cuda.driver-version", ("full", "major", "minor", "revision"), (driver, *fields))
    return made | _numbered("nvidia.com/cuda.runtime-version", ("full", "major", "minor"), (cuda, *runtime))


def _numbered(prefix: str, parts: tuple[str, ...], values: tuple[str, ...] | list[str]) -> Labels:
    return {f"{prefix}.{part}": value for part, value in zip(parts, values, strict=True)}


def _gpu_labels(pool: NodePool, gpu: DemoGPU, old: bool) -> Labels:
    """Write what is said of whole GPUs; where all of them are sliced, replicas is 0: no sharing was looked at."""
    shared = pool.sharing
    sliced = pool.mig is not None and bool(pool.mig.slices) and not pool.mig.whole
    major, minor = gpu.compute.split(".")
    made = {
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
        made |= {"nvidia.com/gpu.mode": "compute", "nvidia.com/mps.capable": str(mps).lower()}
    return made


def _family(compute: str, old: bool) -> str:
    """Name the architecture (internal/lm/resource.go); ada-lovelace has been told from ampere since v0.17.1."""
    if compute == "7.5":
        return "turing"
    if compute == "8.9" and not old:
        return "ada-lovelace"
    return {"7": "volta", "8": "ampere", "9": "hopper", "10": "blackwell", "12": "blackwell"}[compute.split(".")[0]]


def _mig_labels(mig: MIG, product: str, pool: NodePool) -> Labels:
    """Write what is said of slices: under strategy single in the labels of the whole GPU."""
    if mig.invalid:
        return _attributes("gpu", {"product": f"{product}-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0",
                                   "sharing-strategy": ""})  # fmt: skip
    made: Labels = {}
    for profile, each in mig.slices.items():
        name = "gpu" if mig.strategy == "single" else f"mig-{profile.replace('+', '.')}"
        said = _slice_attributes(profile, each) | {"product": f"{product}-MIG-{profile.replace('+', '.')}"}
        if pool.sharing and mig.strategy == "single":
            said |= {"replicas": str(pool.sharing.replicas), "sharing-strategy": pool.sharing.strategy}
            said["product"] += "" if pool.sharing.renamed else "-SHARED"
        made |= _attributes(name, said)
    return made


def _slice_attributes(profile: str, each: Slice) -> Labels:
    """Write a slice's figures; compute slices are as many as GPU slices in all profiles that are given out."""
    copy, decoder, encoder, jpeg, ofa = map(str, each.engines)
    return {
        "count": str(each.count),
        "memory": str(each.memory),
        "replicas": "1",
        "sharing-strategy": "none",
        "multiprocessors": str(each.multiprocessors),
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

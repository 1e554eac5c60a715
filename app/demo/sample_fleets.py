# SPDX-License-Identifier: Apache-2.0
"""The sample fleets as Kubernetes objects, which are read like a real snapshot.

The default fleet, `mixed`, contains the node names of the recorded requests (a100-0, h100-1, t4-0 …). Labels are as
GPU Feature Discovery and mig-manager write them (NVIDIA/k8s-device-plugin internal/lm), as with
`--no-timestamp`. ResourceSlices and DeviceClasses are as NVIDIA's DRA driver and its chart write them
(NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, deployments/helm templates).
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from app.demo.notation import DEFAULT, MIG, DemoDeviceClass, DemoFleet, DemoGPU, DemoPod, NodePool, Slice, read_fleet
from app.kube.device_models import NVIDIA_DRIVER
from app.values.json_members import Object

API_VERSION = "resource.k8s.io/v1"
ARCHITECTURES = {"8": "Ampere", "8.9": "Ada Lovelace", "9": "Hopper", "10": "Blackwell"}
"""Architectures by compute capability or by its major number, as far as sample fleets with DRA have them."""


def device_class(name: str, demo_class: DemoDeviceClass) -> dict[str, Any]:
    """Make a DeviceClass of all devices of one type."""
    expression = (
        f"device.driver == '{NVIDIA_DRIVER}' && device.attributes['{NVIDIA_DRIVER}'].type == '{demo_class.type}'"
    )
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if demo_class.serves:
        spec["extendedResourceName"] = demo_class.serves
    return {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slice(pool: NodePool, node: str) -> dict[str, Any]:
    """Make the ResourceSlice of a node; one holds all its devices, of which a slice may have 128."""
    assert pool.gpu is not None
    spec = {
        "driver": NVIDIA_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": list(_devices(pool, pool.gpu, node)),
    }
    metadata = {"name": f"{node}-{NVIDIA_DRIVER}"}
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _devices(pool: NodePool, gpu: DemoGPU, node: str) -> Iterator[dict[str, Any]]:
    slices = pool.mig.slices if pool.mig else {}
    for minor in range(pool.gpus):
        gpu_uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{minor}')}"
        if not slices:
            yield _device(f"gpu-{minor}", "gpu", pool, gpu, gpu.memory, {"uuid": gpu_uuid})
        for profile, mig_slice in slices.items():
            yield from _mig_devices(profile, mig_slice, minor, gpu_uuid, pool, gpu)


def _mig_devices(
    profile: str, mig_slice: Slice, minor: int, parent: str, pool: NodePool, gpu: DemoGPU
) -> Iterator[dict[str, Any]]:
    """Make the MIG devices of a profile on one GPU; their names are DNS labels, so a profile loses its dots."""
    for start in mig_slice.starts:
        name = f"gpu-{minor}-mig-{profile.replace('.', '').replace('+', '-')}-{mig_slice.id}-{start}"
        mig_uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, parent + name)}"
        yield _device(
            name, "mig", pool, gpu, mig_slice.memory, {"uuid": mig_uuid, "parentUUID": parent, "profile": profile}
        )


def _device(name: str, kind: str, pool: NodePool, gpu: DemoGPU, memory: int, more: dict[str, str]) -> dict[str, Any]:
    """Make a device; its versions are semantic versions, of three numbers without leading zeros."""
    major = gpu.compute.split(".")[0]
    architecture = ARCHITECTURES.get(gpu.compute) or ARCHITECTURES[major]
    texts = {"type": kind, "productName": gpu.name, "brand": "Nvidia", "architecture": architecture, **more}
    versions = {
        "driverVersion": pool.driver,
        "cudaDriverVersion": pool.cuda,
        "cudaComputeCapability": gpu.compute,
    }
    attributes: dict[str, Any] = {key: {"string": text} for key, text in texts.items()}
    attributes |= {key: {"version": _semantic(text)} for key, text in versions.items()}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": _quantity(memory)}}}


def _quantity(mib: int) -> str:
    """Write an amount as the API server does, in the largest unit that gives an integer."""
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"


def _semantic(version: str) -> str:
    numbers = [str(int(part)) for part in version.split(".")]
    return ".".join((*numbers, "0", "0")[:3])


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


POD = {"apiVersion": "v1", "kind": "Pod"}
ADMITTED = {
    "runtimeClassName": "nvidia",
    "tolerations": [{"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}],
}
"""What admission adds to every GPU pod."""


def demo_fleet(name: str = DEFAULT) -> list[Object]:
    """Return the objects of a sample fleet: nodes, the pods that hold GPUs, namespaces, classes, ResourceSlices.

    Raises BadInput for an unknown name.
    """
    return list(objects_of(read_fleet(name)))


def objects_of(fleet: DemoFleet) -> Iterator[Object]:
    for pool in fleet.pools:
        for name in pool.node_names():
            yield _node(fleet, pool, name)
    yield from map(_pod, _pods(fleet))
    for name, labels in {"default": {}, **fleet.namespaces}.items():
        namespace_labels = {"kubernetes.io/metadata.name": name, **labels}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": namespace_labels}}
    for name in fleet.runtime_classes:
        yield {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
    for name, demo_class in fleet.device_classes.items():
        yield device_class(name, demo_class)
    for pool in fleet.pools:
        yield from (resource_slice(pool, name) for name in pool.node_names() if pool.dra)
    yield from fleet.objects


def _node(fleet: DemoFleet, pool: NodePool, name: str) -> Object:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= {**fleet.labels, **node_labels(pool)} if pool.gpu else {}
    taints = fleet.taints if pool.taints is None and pool.gpu else pool.taints or ()
    spec: Object = {"taints": [_taint(text) for text in taints]} if taints else {}
    if pool.cordoned:
        spec["unschedulable"] = True
    capacity = {"cpu": pool.cpu, "memory": pool.memory, "pods": "110", **_texts(_capacity(pool))}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, **pool.labels}},
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": capacity | _texts(pool.allocatable)},
    }


def _capacity(pool: NodePool) -> dict[str, int]:
    """Return what the device plugin registers: nothing with DRA, or if the MIG layout is invalid."""
    if pool.offers is not None:
        return pool.offers
    if pool.gpu is None or pool.dra or (pool.mig and pool.mig.invalid):
        return {}
    slices = pool.mig.slices if pool.mig else {}
    if pool.mig and slices and pool.mig.strategy == "mixed":
        named = {
            f"nvidia.com/mig-{profile.replace('+', '.')}": mig_slice.count for profile, mig_slice in slices.items()
        }
        return {WHOLE_GPU: pool.mig.whole, **named}
    units = sum(mig_slice.count for mig_slice in slices.values()) or pool.gpus
    if pool.sharing is None:
        return {WHOLE_GPU: units}
    return {WHOLE_GPU + (".shared" if pool.sharing.renamed else ""): units * pool.sharing.replicas}


def _texts(amounts: Mapping[str, int | str]) -> dict[str, str]:
    return {key: str(amount) for key, amount in amounts.items()}


def _taint(text: str) -> dict[str, str]:
    """Read a taint as `kubectl taint` writes it: `key=value:Effect`, or `key:Effect`."""
    key_and_value, _, effect = text.rpartition(":")
    key, _, value = key_and_value.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _pods(fleet: DemoFleet) -> Iterator[DemoPod]:
    for pool in fleet.pools:
        for node, gpus in zip(pool.node_names(), pool.busy, strict=False):
            if gpus:
                yield DemoPod(name=f"busy-{node}", node=node, asks={WHOLE_GPU: gpus})
    yield from fleet.pods


def _controller(owner: str) -> Object:
    kind, _, name = owner.partition("/")
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": True}


def _pod(pod: DemoPod) -> Object:
    amounts = _texts(pod.asks)
    container = {"name": "main", "image": pod.image, "resources": {"limits": amounts, "requests": dict(amounts)}}
    metadata: Object = {"name": pod.name, "namespace": pod.namespace, "uid": pod.name}
    if pod.annotations:
        metadata["annotations"] = dict(pod.annotations)
    if pod.owner:
        metadata["ownerReferences"] = [_controller(pod.owner)]
    if pod.created:
        metadata["creationTimestamp"] = pod.created
    spec: Object = {"containers": [container], **ADMITTED, **({"priority": pod.priority} if pod.priority else {})}
    if pod.node:
        return {**POD, "metadata": metadata, "spec": {"nodeName": pod.node, **spec}, "status": {"phase": "Running"}}
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        **POD,
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [unscheduled]},
    }

# SPDX-License-Identifier: Apache-2.0
"""The sample fleets as Kubernetes objects, which are read like a real snapshot.

The default fleet, `mixed`, contains the node names of the recorded requests (a100-0, h100-1, t4-0 …).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.demo.devices import device_class, resource_slice
from app.demo.gfd import WHOLE_GPU, node_labels
from app.demo.notation import DEFAULT, DemoFleet, DemoPod, NodePool, read_fleet

POD = {"apiVersion": "v1", "kind": "Pod"}
ADMITTED = {
    "runtimeClassName": "nvidia",
    "tolerations": [{"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}],
}
"""What admission adds to every GPU pod."""

Object = dict[str, Any]


def demo_fleet(name: str = DEFAULT) -> list[Object]:
    """Return the objects of a sample fleet: nodes, the pods that hold GPUs, namespaces, classes, ResourceSlices.

    Raises BadInput for an unknown name.
    """
    return list(objects_of(read_fleet(name)))


def objects_of(fleet: DemoFleet) -> Iterator[Object]:
    """Yield the objects of a fleet."""
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

# SPDX-License-Identifier: Apache-2.0
"""Checks of what GPU pods lean on: runtime class, device plugin, discovery, provisioner, our own Deployments."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.doctor.cluster_objects import Cluster, Object, advice, containers, named, problem
from app.doctor.fleet_checks import Finding
from app.doctor.webhook_checks import MUTATE, VALIDATE, webhooks

PLUGIN, DISCOVERY = "device-plugin", "gpu-feature-discovery"
"""Words in the names, images or commands of NVIDIA's own manifests, GKE's, and the GPU Operator's."""
SCHEDULER = "gpu-usher-scheduler"
JOB_KINDS = ("JobSet", "LeaderWorkerSet", "PyTorchJob", "RayCluster", "WorkflowTemplate")
"""Kinds whose templates the API server does not check itself, as it does those of Deployments and Jobs."""
_MINOR = re.compile(r"v?1\.(\d+)", re.ASCII)


def runtime_class(cluster: Cluster) -> Iterator[Finding]:
    """Where the class is missing, containers may see no GPU (P34); where it selects other nodes, pods stay Pending.

    Said here and not to those whose pods are admitted: they cannot make a RuntimeClass, nor change the policy.
    """
    nodes = [node for node in cluster.gpu_nodes() if _is_nvidia(node.labels) or _is_nvidia(node.allocatable)]
    if not cluster.read("RuntimeClass") or not nodes:
        return
    classes = {each["metadata"]["name"]: each for each in cluster.listed("RuntimeClass")}
    for name in cluster.runtime_classes:
        if name not in classes:
            remedy = (
                "make it (the GPU Operator does); where the nodes' default runtime, CDI or the cloud's device plugin "
                "gives containers their GPUs without one, take runtimeClassName out of the policies"
            )
            yield advice("RuntimeClassAbsent", f"no RuntimeClass {name}: pods get none", remedy, f"RuntimeClass {name}")
            continue
        selector = (classes[name].get("scheduling") or {}).get("nodeSelector") or {}
        missed = tuple(sorted(node.name for node in nodes if not selector.items() <= node.labels.items()))
        if missed:
            what = f"RuntimeClass {name} keeps pods off: its nodeSelector is {_pairs(selector)}"
            yield problem(
                "RuntimeClassSelector", what, "label the nodes so, or mend scheduling.nodeSelector", nodes=missed
            )


def device_plugin(cluster: Cluster) -> Iterator[Finding]:
    """Nobody offers GPUs where no device plugin runs; DRA drivers do without."""
    yield from _daemon(cluster, PLUGIN, "DevicePlugin", "no GPU is offered, or changes of health are not")


def discovery(cluster: Cluster) -> Iterator[Finding]:
    """Labels of GPU Feature Discovery that nobody renews go stale (F73)."""
    yield from _daemon(cluster, DISCOVERY, "GPUFeatureDiscovery", "labels of GPUs are not kept fresh")


def _daemon(cluster: Cluster, word: str, check: str, hurt: str) -> Iterator[Finding]:
    nodes = [node for node in cluster.gpu_nodes() if _is_nvidia(node.labels) and not node.node_class.by_dra]
    if not cluster.read("DaemonSet") or not nodes:
        return
    found = [each for each in cluster.listed("DaemonSet") if _runs(each, word)]
    if not found:
        remedy = "install the GPU Operator or its Helm chart; nothing to do where nodes run it outside the cluster"
        yield advice(check, f"no DaemonSet of {word}: {hurt}", remedy, "DaemonSet")
    for each in found:
        status = each.get("status") or {}
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if ready < wanted:
            what = f"{ready} of {wanted} pods ready: {hurt}"
            yield problem(check, what, "look at the pods that are not ready", named("DaemonSet", each))


def _runs(item: Object, word: str) -> bool:
    """Tell whether a DaemonSet runs a program for NVIDIA's GPUs: by its name, or its containers' image and command."""
    parts = [item["metadata"]["name"]]
    for each in (((item.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or ():
        parts += [each.get("name", ""), each.get("image", ""), *(each.get("command") or ()), *(each.get("args") or ())]
    text = " ".join(map(str, parts))
    return word in text and ("nvidia" in text or "gpu" in text)


def deployments(cluster: Cluster) -> Iterator[Finding]:
    """Our own replicas: without one that answers, the webhooks' failure policies rule."""
    expected = any(each.name in (MUTATE, VALIDATE) for each in webhooks(cluster))
    found = {each["metadata"]["name"]: each for each in cluster.listed("Deployment")}
    if cluster.read("Deployment") and expected and "gpu-usher" not in found:
        place = f"{cluster.namespace}/gpu-usher"
        what = "webhooks are installed, and nobody is there to answer them"
        remedy = "kubectl apply -k deploy/overlays/…, or --namespace where it runs"
        yield problem("ReplicasAbsent", what, remedy, f"Deployment {place}")
    for name, item in sorted(found.items()):
        wanted = (item.get("spec") or {}).get("replicas", 1)
        available = (item.get("status") or {}).get("availableReplicas", 0)
        if name.startswith("gpu-usher") and available < wanted:
            say = advice if available else problem
            remedy = f"kubectl -n {cluster.namespace} describe deployment {name}"
            yield say(
                "ReplicasUnavailable", f"{available} of {wanted} replicas available", remedy, named("Deployment", item)
            )


def scheduler_version(cluster: Cluster) -> Iterator[Finding]:
    """kube-scheduler may be one minor older than the API server, never newer (Kubernetes, version skew policy)."""
    serves = _minor(cluster.version)
    for item in cluster.listed("Deployment"):
        if item["metadata"]["name"] != SCHEDULER or serves is None:
            continue
        for each in containers(item.get("spec")):
            image = str(each.get("image", "")).partition("@")[0]
            runs = _minor(image.rpartition(":")[2]) if "kube-scheduler" in image else None
            if runs is not None and runs != serves:
                say = advice if runs == serves - 1 else problem
                what = f"kube-scheduler 1.{runs} with an API server of 1.{serves}"
                remedy = f"take the image of 1.{serves}: an older one ignores new fields, a newer one is not supported"
                yield say("SchedulerVersion", what, remedy, named("Deployment", item))


def _minor(version: str) -> int | None:
    found = _MINOR.match(version)
    return int(found[1]) if found else None


def provisioner_templates(cluster: Cluster) -> Iterator[Finding]:
    """A Karpenter NodePool decides by what its template says: without a taint CPU pods fill it (P39), and without a
    label that tells the product a pod that names one finds nothing to grow."""
    for item in cluster.listed("NodePool"):
        template = (item.get("spec") or {}).get("template") or {}
        spec = template.get("spec") or {}
        taints = {each.get("key") for each in spec.get("taints") or ()}
        keys = set((template.get("metadata") or {}).get("labels") or ())
        keys |= {each.get("key", "") for each in spec.get("requirements") or ()}
        if not _for_gpus(cluster, spec, keys, taints):
            continue
        known = {key for family in cluster.knowledge.families.all for key in family.taint_keys}
        if not taints & known:
            remedy = "spec.template.spec.taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]"
            yield advice(
                "NodePoolUntainted", "makes GPU nodes that no taint keeps CPU pods off", remedy, named("NodePool", item)
            )
        if not keys & {"nvidia.com/gpu.product", *(each.key for each in cluster.knowledge.clouds.dialects)}:
            what = "says of no product what its nodes have: a pod that names one does not make it grow"
            remedy = "add the requirement karpenter.k8s.aws/instance-gpu-name, or the label nvidia.com/gpu.product"
            yield advice("NodePoolUnlabelled", what, remedy, named("NodePool", item))


def _for_gpus(cluster: Cluster, spec: Mapping[str, Any], keys: set[str], taints: set[Any]) -> bool:
    """Tell whether a NodePool makes GPU nodes: its labels, requirements or taints speak of GPUs, or its machines do."""
    values = {
        str(value)
        for each in spec.get("requirements") or ()
        if "instance" in each.get("key", "") and each.get("operator") == "In"
        for value in each.get("values") or ()
    }
    absent = {each.get("key", "") for each in spec.get("requirements") or () if each.get("operator") == "DoesNotExist"}
    return any("gpu" in str(key) for key in (keys - absent) | taints) or _machines(cluster, values)


def _machines(cluster: Cluster, values: Iterable[str]) -> bool:
    """Tell whether any value names a machine type that has GPUs, or a family of them (EC2's, before the dot)."""
    known = cluster.knowledge.clouds.instances
    return any(known.find(value) or known.find(f"{value}.") for value in values)


def requests_only(cluster: Cluster) -> Iterator[Finding]:
    """GPUs in requests alone are refused by the API server wherever our webhook is not called (P36)."""
    of = cluster.knowledge.families.of
    for kind in JOB_KINDS:
        for item in cluster.listed(kind):
            lacking = {
                name
                for each in containers(item.get("spec"))
                for name in (each.get("resources") or {}).get("requests") or ()
                if of(name) and name not in ((each.get("resources") or {}).get("limits") or ())
            }
            if lacking:
                what = f"{', '.join(sorted(lacking))} in requests without limits: its pods live by our repair"
                yield advice("RequestsOnly", what, "write the same amount in limits", named(kind, item))


def _is_nvidia(keys: Iterable[str]) -> bool:
    """Tell whether a node's labels, or its resources, are NVIDIA's."""
    return any(key.startswith("nvidia.com/") for key in keys)


def _pairs(selector: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))

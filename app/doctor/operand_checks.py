# SPDX-License-Identifier: Apache-2.0
"""Checks of what GPU pods depend on: RuntimeClass, device plugin, discovery, second scheduler, node provisioner.

RuntimeClasses are compared with the runtime handlers of nodes, on a snapshot and on a live cluster. Users get no
warning of a class that is missing when their pods are admitted, since they can change neither it nor a policy. A GPU
Operator with CDI, and a cloud's own device plugin, need no class at all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.doctor.cluster_objects import ExaminedCluster, containers, object_name
from app.doctor.fleet_checks import Finding, advice, problem
from app.doctor.replica_checks import SCHEDULER
from app.knowledge.container_toolkit import Runtimes
from app.knowledge.tables import Knowledge
from app.kube.objects import RuntimeClass
from app.kube.records import read_record
from app.nodes.conditions import NVIDIA_DOMAIN, PRODUCT
from app.nodes.model import Node
from app.nodes.reading import lacks_handler
from app.policy.schema_admission import AUTO
from app.values.json_members import JSONObject


@dataclass(frozen=True, slots=True)
class ExaminedRuntimes:
    """What is examined: the GPU nodes of vendors whose toolkit has a runtime handler, and the RuntimeClasses by name.

    `wanted` are the values of runtimeClassName of the policies, which may be Auto.
    """

    nodes: tuple[Node, ...]
    classes: Mapping[str, RuntimeClass]
    wanted: frozenset[str]
    runtimes: Runtimes

    def of_toolkit(self) -> tuple[str, ...]:
        """Name the classes that name the handler of a vendor's toolkit."""
        handlers = self.runtimes.handlers.values()
        return tuple(sorted(name for name, found in self.classes.items() if found.handler in handlers))


def class_absent(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class that the policies name and that does not exist, or that pods may need and that was never
    created."""
    for name in sorted(examined.wanted - {AUTO} - set(examined.classes)):
        other = f"; RuntimeClass {examined.of_toolkit()[0]} has the toolkit's handler" if examined.of_toolkit() else ""
        remedy = (
            "create it (the GPU Operator does), or write runtimeClassName: Auto in the policies, which sets a class "
            "only where one is needed and its handler is there"
        )
        yield advice(
            "RuntimeClassAbsent", f"no RuntimeClass {name}: pods get none{other}", remedy, f"RuntimeClass {name}"
        )
    if AUTO not in examined.wanted or examined.of_toolkit():
        return
    for handler in examined.runtimes.handlers.values():
        may_need = [node.name for node in examined.nodes if _may_need(node, handler)]
        if may_need and handler not in examined.wanted:
            remedy = (
                f"create one for handler {handler} (the GPU Operator does) if containers see no GPU; nothing to do "
                "where the nodes' default runtime or CDI gives it to them"
            )
            what = f"no RuntimeClass {handler}: pods get none"
            yield advice("RuntimeClassAbsent", what, remedy, f"RuntimeClass {handler}")


def _may_need(node: Node, handler: str) -> bool:
    """Tell whether pods on a node may need the class of a handler, by all that the node shows."""
    facts = node.node_class
    return not (lacks_handler(facts, handler) or facts.runtime_class_unneeded or facts.dra_resources)


def handler_absent(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class with whose handler some GPU nodes start no pod."""
    named = examined.wanted & set(examined.classes)
    for name in sorted(named | set(examined.of_toolkit())):
        handler = examined.classes[name].handler
        lacking = tuple(node.name for node in examined.nodes if lacks_handler(node.node_class, handler))
        if lacking:
            which = "no GPU node has" if len(lacking) == len(examined.nodes) else "these nodes do not have"
            what = (
                f"RuntimeClass {name} names runtime handler {handler}, which {which}: a pod of the class does not start"
            )
            remedy = (
                "delete the class if CDI or the default runtime gives containers their GPUs; else configure the "
                "handler (nvidia-ctk runtime configure; restart k3s and RKE2 after the toolkit is installed)"
            )
            yield advice("RuntimeHandlerAbsent", what, remedy, f"RuntimeClass {name}", nodes=lacking)


def selects_other_nodes(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class whose node selector keeps its pods off GPU nodes."""
    named = set(examined.of_toolkit()) if AUTO in examined.wanted else set()
    for name in sorted((named | examined.wanted) & set(examined.classes)):
        selector = examined.classes[name].node_selector
        missed = tuple(sorted(node.name for node in examined.nodes if not selector.items() <= node.labels.items()))
        if missed:
            pairs = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
            what = f"RuntimeClass {name} keeps pods off: its nodeSelector is {pairs}"
            remedy = "label the nodes accordingly, or correct scheduling.nodeSelector of the class"
            yield problem("RuntimeClassSelector", what, remedy, nodes=missed)


CHECKS = (class_absent, handler_absent, selects_other_nodes)


def examine_runtime_classes(
    nodes: Iterable[Node], classes: Mapping[str, RuntimeClass] | None, wanted: frozenset[str], knowledge: Knowledge
) -> tuple[Finding, ...]:
    """Run every check; nothing is found where the RuntimeClasses are not known."""
    with_toolkit = tuple(node for node in nodes if node.has_gpus and _has_toolkit(node, knowledge))
    if classes is None or not with_toolkit:
        return ()
    examined = ExaminedRuntimes(with_toolkit, classes, wanted, knowledge.runtimes)
    return tuple(finding for check in CHECKS for finding in check(examined))


def _has_toolkit(node: Node, knowledge: Knowledge) -> bool:
    """Tell whether any of a node's labels or resources is of a vendor whose toolkit has a runtime handler."""
    domains = tuple(
        family.whole.partition("/")[0] + "/"
        for family in knowledge.families.all
        if family.name in knowledge.runtimes.handlers
    )
    return any(key.startswith(domains) for key in (*node.labels, *node.allocatable))


PLUGIN, DISCOVERY = "device-plugin", "gpu-feature-discovery"
"""Parts of the names, images or commands in the manifests of NVIDIA, GKE and the GPU Operator."""
JOB_KINDS = ("JobSet", "LeaderWorkerSet", "PyTorchJob", "RayCluster", "WorkflowTemplate")
"""Kinds whose pod templates the API server does not validate, unlike those of Deployments and Jobs."""
_MINOR = re.compile(r"v?1\.(\d+)", re.ASCII)


def runtime_class(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report RuntimeClasses that are missing, or that do not suit the nodes (doctor/operand_checks.py)."""
    if cluster.could_read("RuntimeClass"):
        classes = {
            item["metadata"]["name"]: read_record(RuntimeClass, item) for item in cluster.objects_of("RuntimeClass")
        }
        wanted = cluster.runtime_class_names()
        yield from examine_runtime_classes(cluster.nodes, classes, wanted, cluster.knowledge)


def device_plugin(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report a missing device plugin, without which no node offers GPUs; DRA drivers need none."""
    yield from _daemon_set_finding(
        cluster, PLUGIN, "DevicePlugin", "nodes offer no GPUs, or their health is not updated"
    )


def discovery(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report a missing GPU Feature Discovery, without which its labels go stale; a cloud may keep its own."""
    consequence = "GPU labels are not updated"
    clouds = cluster.knowledge.clouds
    if any(not clouds.labels_sharing(node.labels) for node in _nvidia_nodes(cluster)):
        yield from _daemon_set_finding(cluster, DISCOVERY, "GPUFeatureDiscovery", consequence)


def _nvidia_nodes(cluster: ExaminedCluster) -> list[Node]:
    with_devices = (node for node in cluster.gpu_nodes() if not node.node_class.claims_only)
    return [node for node in with_devices if any(key.startswith(NVIDIA_DOMAIN) for key in node.labels)]


def _daemon_set_finding(cluster: ExaminedCluster, program: str, check: str, consequence: str) -> Iterator[Finding]:
    nodes = _nvidia_nodes(cluster)
    if not cluster.could_read("DaemonSet") or not nodes:
        return
    daemon_sets = [item for item in cluster.objects_of("DaemonSet") if _runs(item, program)]
    if not daemon_sets:
        remedy = "install the GPU Operator or its Helm chart, unless the nodes run it outside the cluster"
        yield advice(check, f"no DaemonSet of {program}: {consequence}", remedy, "DaemonSet")
    for item in daemon_sets:
        status = item.get("status") or {}
        desired, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if ready < desired:
            text = f"{ready} of {desired} pods ready: {consequence}"
            yield problem(check, text, "kubectl describe the pods that are not ready", object_name("DaemonSet", item))


def _runs(item: JSONObject, program: str) -> bool:
    """Tell whether a DaemonSet runs a program for NVIDIA's GPUs, by its name, or its containers' image and command."""
    parts = [item["metadata"]["name"]]
    for container in (((item.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or ():
        parts += [
            container.get("name", ""),
            container.get("image", ""),
            *(container.get("command") or ()),
            *(container.get("args") or ()),
        ]
    text = " ".join(map(str, parts))
    return program in text and ("nvidia" in text or "gpu" in text)


def scheduler_version(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report a kube-scheduler whose minor version differs from the API server's (version skew policy: one older)."""
    server_minor = _minor(cluster.version)
    for item in cluster.objects_of("Deployment"):
        if item["metadata"]["name"] != SCHEDULER or server_minor is None:
            continue
        for container in containers(item.get("spec")):
            image = str(container.get("image", "")).partition("@")[0]
            scheduler_minor = _minor(image.rpartition(":")[2]) if "kube-scheduler" in image else None
            if scheduler_minor is not None and scheduler_minor != server_minor:
                finding = advice if scheduler_minor == server_minor - 1 else problem
                text = f"kube-scheduler 1.{scheduler_minor} with an API server of 1.{server_minor}"
                remedy = (
                    f"take the image of 1.{server_minor}: an older one ignores new fields, a newer one is not supported"
                )
                yield finding("SchedulerVersion", text, remedy, object_name("Deployment", item))


def _minor(version: str) -> int | None:
    match = _MINOR.match(version)
    return int(match[1]) if match else None


def provisioner_templates(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report Karpenter NodePools for GPUs without a taint, so that CPU pods fill them, or without a label for the
    product, so that they add no node for a pod that names a product.
    """
    for item in cluster.objects_of("NodePool"):
        template = (item.get("spec") or {}).get("template") or {}
        spec = template.get("spec") or {}
        taints = {taint.get("key") for taint in spec.get("taints") or ()}
        keys = set((template.get("metadata") or {}).get("labels") or ())
        keys |= {entry.get("key", "") for entry in spec.get("requirements") or ()}
        if not _makes_gpu_nodes(cluster, spec, keys, taints):
            continue
        gpu_taints = {key for family in cluster.knowledge.families.all for key in family.taint_keys}
        if not taints & gpu_taints:
            remedy = "spec.template.spec.taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]"
            yield advice(
                "NodePoolUntainted",
                "creates GPU nodes without a taint that keeps CPU pods off",
                remedy,
                object_name("NodePool", item),
            )
        if not keys & {PRODUCT, *(dialect.key for dialect in cluster.knowledge.clouds.dialects)}:
            text = "no label names the GPU product of its nodes: a pod that names one does not scale it up"
            remedy = "add the requirement karpenter.k8s.aws/instance-gpu-name, or the label nvidia.com/gpu.product"
            yield advice("NodePoolUnlabelled", text, remedy, object_name("NodePool", item))


def _makes_gpu_nodes(cluster: ExaminedCluster, spec: Mapping[str, Any], keys: set[str], taints: set[Any]) -> bool:
    """Tell whether a NodePool makes GPU nodes, by its labels, requirements and taints, or by its machine types."""
    values = {
        str(value)
        for entry in spec.get("requirements") or ()
        if "instance" in entry.get("key", "") and entry.get("operator") == "In"
        for value in entry.get("values") or ()
    }
    absent = {
        entry.get("key", "") for entry in spec.get("requirements") or () if entry.get("operator") == "DoesNotExist"
    }
    return any("gpu" in str(key) for key in (keys - absent) | taints) or any(
        # EC2's families are named before the dot.
        cluster.knowledge.clouds.instances.find(value) or cluster.knowledge.clouds.instances.find(f"{value}.")
        for value in values
    )


def requests_only(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report templates with GPUs in requests alone, which the API server refuses without our webhook."""
    family_of = cluster.knowledge.families.of
    for kind in JOB_KINDS:
        for item in cluster.objects_of(kind):
            lacking = {
                name
                for container in containers(item.get("spec"))
                for name in (container.get("resources") or {}).get("requests") or ()
                if family_of(name) and name not in ((container.get("resources") or {}).get("limits") or ())
            }
            if lacking:
                names = ", ".join(sorted(lacking))
                text = f"has {names} in requests without limits: without gpu-usher its pods would be refused"
                yield advice("RequestsOnly", text, "write the same amount in limits", object_name(kind, item))

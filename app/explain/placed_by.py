# SPDX-License-Identifier: Apache-2.0
"""Who places a pod: its scheduler, whether that asks gpu-usher and has looked at the pod; and what a pod got.

Of a pod that has a node already, or that has ended, what it holds is released, so that it is judged as a new pod.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.admission.preview import unbound
from app.admission.reviewed_pod import OUR_SCHEDULERS
from app.admission.validators import pod_level_gpus
from app.dra.cluster_devices import ClusterDevices
from app.dra.pod_claims import generated_claims
from app.explain.container_requests import amount_text
from app.explain.pod_start import shortened
from app.explain.survey import NodeJudge, ScheduledPod
from app.intree.api_server import node_selector
from app.intree.checks import InTreeRefusal
from app.knowledge.gpu_resources import matches_whole_name, similar_resources
from app.knowledge.products import Products
from app.kube.existing_pods import deployment_of
from app.kube.finished_pods import Ending, read_finished_pod
from app.kube.gangs import gang_words
from app.kube.gpu_usage import read_bound_requests, read_gpu_usage
from app.kube.pending_pods import unseen_by
from app.kube.pod_object import PodObject, pod_object
from app.kube.pod_requests import PODS, PodRequests
from app.kube.pods import Pod
from app.nodes.mig_state import explained_by_node
from app.nodes.model import SHARED_UNITS, Node
from app.policy.schema_placement import SharingWish
from app.values.reasons import counted, join_with_or
from app.world.scheduling_groups import gang_of_pod
from app.world.world import World

ANY_PROFILE = frozenset({"default-scheduler"})
"""Of OUR_SCHEDULERS, the one of which it is not known whether its extender is gpu-usher."""


def who_decides(scheduled_pod: ScheduledPod, snapshot: World, refused: bool, fits: bool) -> Iterator[str]:
    """Say where kube-scheduler decides a GPU pod without asking gpu-usher, as it does by managedResources.

    `refused` and `fits` tell whether filter refuses some node, and whether some node fits. Where the configuration of
    the scheduler is not known, the order of the nodes that fit is said to be gpu-usher's alone.
    """
    pod, name = scheduled_pod.pod, scheduled_pod.pod.scheduler_name
    if not scheduled_pod.demand.requests_gpus:
        return
    if without := snapshot.knowledge.evidence.schedulers_without_gpus.get(name):
        yield without
        return
    managed = snapshot.managed_resources.get(name)
    named = {resource for container in pod.containers for resource in container.resources()}
    if managed is not None and not managed & named:
        yield (
            "kube-scheduler decides this pod alone: it requests none of the managedResources of the extender of "
            f"{name}; gpu-usher scheduler-config writes a configuration that asks gpu-usher about it"
        )
    elif refused and name not in snapshot.managed_resources and not scheduled_pod.demand.resources:
        yield (
            f"gpu-usher is asked about this pod only if the extender of {name} has an entry without managedResources, "
            "since the pod has only ResourceClaims; check that with gpu-usher scheduler-config --verify"
        )
    elif snapshot.knowledge.families.uncounted(name, ()):
        return  # with another scheduler the pod would fit nowhere
    elif fits and scheduled_pod.demand.resources and name not in _asking(snapshot):
        yield (
            f"{name} places this pod, and is not known to ask gpu-usher: it may take another node than the first "
            f"here; schedulerName chooses a scheduler that asks gpu-usher, such as {join_with_or(_asking(snapshot))}"
        )


def _asking(snapshot: World) -> list[str]:
    """List the schedulers that ask gpu-usher: by their name, by a policy, or because they have done so."""
    policies = snapshot.policies.policies
    by_policy = {policy.spec.admission.scheduler_name or "" for policy in policies} - {""}
    return sorted(by_policy | (OUR_SCHEDULERS - ANY_PROFILE) | snapshot.asking | set(snapshot.managed_resources))


def not_looked_at(
    document: Mapping[str, Any], events: Iterable[Mapping[str, Any]], without_gpus: Collection[str]
) -> Iterator[str]:
    """Say that no scheduler has looked at a pod of the cluster yet: neither a condition nor an Event tells that.

    Of `without_gpus`, which are schedulers that give no GPU, `who_decides` says more.
    """
    pod = pod_object(document)
    name = unseen_by(pod)
    if not name or name in without_gpus or any(name in _reporters(event) for event in events):
        return
    created = pod.metadata.creation_timestamp
    since = f" since it was created at {created}" if created else ""
    yield silence_of(name, since)


def creation_notes(scheduled_pod: ScheduledPod, snapshot: World) -> Iterator[str]:
    """Say of a new pod what limits leave to it, and what its RuntimeClass and its namespace add to it."""
    pod, spec = scheduled_pod.pod, scheduled_pod.document["spec"]
    if any(claim.get("source") for claim in spec.get("resourceClaims") or ()):
        yield (
            "spec.resourceClaims[].source is a field of Kubernetes 1.26 to 1.30: a newer API server drops it, and "
            "refuses the pod; write resourceClaimName or resourceClaimTemplateName beside name"
        )
    if not snapshot.judges_creation:
        return
    for refusal in scheduled_pod.api_refusals:
        match refusal.about:
            case "ResourceQuota", name, resource, most, _ if resource:
                left = amount_text(resource, int(most))
                yield f"ResourceQuota {name} leaves {left} {resource} to new pods of namespace {pod.namespace}"
    if spec.get("overhead"):
        amounts = ", ".join(f"{resource} {amount}" for resource, amount in sorted(spec["overhead"].items()))
        yield f"RuntimeClass {pod.runtime_class_name} adds an overhead to what the containers request: {amounts}"
    annotation, selector = node_selector(pod.namespace, snapshot.admission_objects)
    if selector:
        pairs = ", ".join(f"{key}={value}" for key, value in selector.items())
        yield f"namespace {pod.namespace} adds a node selector to its pods: {pairs} (annotation {annotation})"
    if snapshot.unread_limits:
        yield f"the API server may refuse it all the same: {', '.join(snapshot.unread_limits)} are not read here"


def claims_to_come(pod: Pod, document: Mapping[str, Any], devices: ClusterDevices) -> Iterator[str]:
    """Say which claims of a pod are not there: kube-scheduler does not try the pod before, and writes nothing of it.

    Source: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go PreEnqueue.
    """
    generated = generated_claims(document)
    for entry, claim, template in pod.claims:
        if claim and f"{pod.namespace}/{claim}" not in devices.claims:
            yield (
                f"kube-scheduler does not try the pod before ResourceClaim {pod.namespace}/{claim} exists, which is "
                "not known here; create it, or correct resourceClaimName"
            )
        elif template and entry not in generated:
            known = f"{pod.namespace}/{template}" in devices.templates
            remedy = "read the log of kube-controller-manager" if known else "create it, or correct its name"
            yield (
                f"kube-scheduler does not try the pod before a claim is made of ResourceClaimTemplate "
                f"{pod.namespace}/{template}{'' if known else ', which is not known here'}; {remedy}"
            )


def group_to_come(pod: Pod, document: Mapping[str, Any], snapshot: World) -> Iterator[str]:
    """Say that the PodGroup of a pod is not known: kube-scheduler does not try the pod before it is there.

    Source: pkg/scheduler/framework/plugins/gangscheduling/gangscheduling.go PreEnqueue.
    """
    gang = gang_of_pod(snapshot.state, pod, document) if pod.pod_group else None
    if gang is not None and gang.group is None and snapshot.pod_group is None:
        yield (
            f"kube-scheduler does not try the pod before {gang_words(gang.key)} exists, which is not known here; "
            "create it, or correct schedulingGroup.podGroupName"
        )


def answer_of_scheduler(document: Mapping[str, Any]) -> Iterator[str]:
    """Repeat what the scheduler last said of a pod that fits here: it judges more, such as volumes."""
    pod = pod_object(document)
    answers = (one for one in pod.status.conditions if (one.type, one.status) == ("PodScheduled", "False"))
    if message := next((one.message for one in answers), None):
        yield f"the last answer of {pod.scheduler} was: {shortened(message)}"


def who_is_in_the_way(scheduled_pod: ScheduledPod, snapshot: World, live: bool) -> Iterator[str]:
    """Say of a pod that fits nowhere which holders of GPUs wait for it, or end for it."""
    if node := scheduled_pod.pod.nominated_node_name:
        yield f"kube-scheduler has chosen {node} for it, and waits until the pods that it preempts there have ended"
    former, judge = _former_pods(scheduled_pod, snapshot), NodeJudge(scheduled_pod, snapshot.used, None)
    for place in snapshot.nodes.values() if former else ():
        held = [usage for usage in snapshot.state.allocations.bound(place.name) if usage.bound and usage.name in former]
        free = place.free
        for usage in held:
            free = free.with_units(usage.units, usage.memory_mib)
        # What kube-scheduler counts is not given back here, so that its transient refusals stay.
        left = judge.objections(replace(place, free=free)) if held else ()
        if held and all(isinstance(one, InTreeRefusal) and one.transient for one in left):
            unless = "" if live else "unless its strategy is Recreate, "
            yield (
                f"{held[0].name} on {place.name} holds GPUs and is a pod of the same Deployment: {unless}an update "
                "ends that pod only when the new one is ready, so that waiting does not help; maxSurge: 0 with "
                "maxUnavailable: 1, or strategy Recreate, ends it first"
            )
            return


def _former_pods(scheduled_pod: ScheduledPod, snapshot: World) -> set[str]:
    """Name the pods with a node that are of another template of the same Deployment, and do not end."""
    pod, deployment = scheduled_pod.pod, deployment_of(pod_object(scheduled_pod.document).metadata)
    template = pod.labels.get("pod-template-hash")
    return {
        other.name
        for other in snapshot.existing_pods or ()
        if deployment and (other.pod.namespace, other.deployment) == (pod.namespace, deployment)
        if not other.terminating and other.pod.labels.get("pod-template-hash") != template
    }


def labels_of_no_node(scheduled_pod: ScheduledPod, snapshot: World) -> Iterator[str]:
    """Say of a pod that fits nowhere by which labels it selects that no node has and that nothing sets by itself."""
    own, pattern = scheduled_pod.own, snapshot.knowledge.known_labels
    wanted = [{key for key, rule in term.expressions if rule and not rule.allows(None)} for term in own.terms or ()]
    by_all = set.intersection(*wanted) if wanted else set()
    for key in dict.fromkeys((*(key for key, _ in own.selector), *sorted(by_all))):
        if not matches_whole_name(pattern, key) and not any(key in node.labels for node in snapshot.nodes.values()):
            yield (
                f"no node has the label {key}, and no cloud, provisioner or GPU software is known to set it: an "
                "autoscaler adds a node for this pod only if the template of a node group or NodePool has the label"
            )


def silence_of(name: str, since: str = "") -> str:
    """Write that a scheduler has not looked at a pod, and what to do."""
    return (
        f"the pod names scheduler {name}, which has not tried to schedule it{since}: it has no condition PodScheduled; "
        f"check that {name} runs, or correct schedulerName"
    )


def _reporters(event: Mapping[str, Any]) -> set[str]:
    """Return the names under which an Event was written, in either version of the API."""
    source = event.get("source") or event.get("deprecatedSource") or {}
    names = (event.get("reportingComponent"), event.get("reportingController"), source.get("component"))
    return {str(name) for name in names}


REQUESTS_OF_OTHERS = ("gpu-fraction", "gpu-memory")
"""Annotations that are requests to KAI (kai-scheduler/KAI-Scheduler, its page on GPU sharing)."""


def asks_for_none(scheduled_pod: ScheduledPod, snapshot: World) -> Iterator[str]:
    """Say that a pod asks for no GPU, and how to ask for one that the cluster has."""
    families = snapshot.knowledge.families
    pod = scheduled_pod.pod
    if scheduled_pod.demand.requests_gpus or pod.claims or pod_level_gpus(scheduled_pod.document, families):
        return
    offered = {name for node in snapshot.nodes.values() for name, _ in node.node_class.offered if families.of(name)}
    named = [name for container in pod.containers for name in container.resources()]
    if any(families.elsewhere(name) or similar_resources(name, offered, families) for name in named):
        return
    if asked := [key for key in REQUESTS_OF_OTHERS if key in pod.annotations]:
        yield f"annotation {asked[0]} asks another scheduler, KAI, for a part of a GPU, which is not judged here"
        return
    whole = [row.whole for row in families.all if row.whole in offered]
    resource = next(iter((*whole, *sorted(offered), families.all[0].whole)))
    yield f"it asks for no GPU; if it needs one, add resources.limits {resource}: 1 to a container"


def what_it_got(
    scheduled_pod: ScheduledPod, node: Node | None, products: Products, left_out: Sequence[tuple[str, int]]
) -> Iterator[str]:
    """Say what a pod has on its node, and which of its needs left out other nodes (`left_out`, with their number)."""
    if node is None:
        return
    demand = scheduled_pod.demand
    for resource, amount in demand.resources:
        if not node.node_class.allocatable(resource):
            continue
        row = products.find(node.node_class.product or "")
        product = row.label if row is not None else node.node_class.product or "unknown product"
        has = f"it has {amount} x {node.node_class.unit_words(resource)} of {product} on {node.name}"
        needs = " and ".join(f"{text} ({counted(number, 'node')})" for text, number in left_out)
        why = f"its needs leave out others: {needs}" if needs else f"its needs leave out no other node with {resource}"
        if node.node_class.unit(resource) in SHARED_UNITS and demand.sharing is SharingWish.Any:
            why += "; nothing asks for a whole GPU: set gpu-usher.io/sharing: Exclusive to get one"
        yield f"{has}; {why}"


def node_of_bound_pod(document: Mapping[str, Any]) -> str | None:
    """Name the node that a pod runs on; None where it has none, or is finished."""
    requests = read_bound_requests(pod_object(document))
    return requests.node if requests else None


def as_unbound(document: Mapping[str, Any], snapshot: World) -> tuple[Mapping[str, Any], World]:
    """Return a pod without spec.nodeName, and the snapshot without the resources that it holds on its node.

    A pod that has ended holds none.
    """
    pod = pod_object(document)
    requests = read_bound_requests(pod)
    return unbound(document), snapshot if requests is None else _with_released(pod, requests, snapshot)


def ending_of(document: Mapping[str, Any], snapshot: World) -> Ending | None:
    """Say how a pod ended; None for one that has not.

    Raises MalformedPod.
    """
    pod = read_finished_pod(pod_object(document), snapshot.knowledge)
    return explained_by_node(pod, snapshot.nodes.get(pod.ending.node)).ending if pod is not None else None


def _with_released(pod: PodObject, requests: PodRequests, snapshot: World) -> World:
    node, used = snapshot.nodes.get(requests.node), {**snapshot.used.get(requests.node, {})}
    for resource, amount in (*requests.amounts, (PODS, 1)):
        used[resource] = max(0, used.get(resource, 0) - amount)
    existing_pods = snapshot.existing_pods and tuple(
        existing for existing in snapshot.existing_pods if existing.name != pod.key
    )
    released = replace(snapshot, used={**snapshot.used, requests.node: used}, existing_pods=existing_pods)
    usage = read_gpu_usage(pod, snapshot.knowledge)
    if node is None or usage is None:
        return released
    freed_node = replace(node, free=node.free.with_units(usage.units, usage.memory_mib))
    return replace(released, nodes={**snapshot.nodes, node.name: freed_node})

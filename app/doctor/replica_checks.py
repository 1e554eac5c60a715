# SPDX-License-Identifier: Apache-2.0
"""Checks of our own replicas: of the Services that callers use, of our Deployments, and of what they read.

The API server sends a webhook's call to a ready endpoint of its Service. Where there is none the call fails, whatever
the cause, and the webhook's failurePolicy decides about the pod.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from app.doctor.cluster_objects import APPLY, ExaminedCluster, object_name
from app.doctor.fleet_checks import Finding, advice, problem
from app.doctor.webhook_checks import MUTATE, VALIDATE, Webhook, webhooks
from app.values.json_members import JSONObject

ADMISSION, SCHEDULER = "gpu-usher", "gpu-usher-scheduler"
CERTIFICATES, CONTROLLER = "gpu-usher-certificates", "gpu-usher-controller"
"""Names of our Deployments in deploy/; the first is also that of the Service."""
SERVICE_LABEL = "kubernetes.io/service-name"
"""The label by which an EndpointSlice names its Service."""
SHIPPED_REPLICAS = {ADMISSION: 3, SCHEDULER: 2}
"""The Deployments without which GPU pods are refused or not scheduled; all others have one replica."""
WITHOUT = {
    SCHEDULER: "pods that name it as their scheduler stay Pending",
    CERTIFICATES: "our certificates are not renewed",
    CONTROLLER: "no Events about Pending pods are written",
}
"""Deployment → what happens while none of its replicas is available."""
_SERVICE_HOST = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\..*)?", re.ASCII)


def no_ready_endpoint(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report Services of our webhooks and of the extender without a ready endpoint, and the cause."""
    for namespace, name in sorted(_called_services(cluster)):
        place = f"Service {namespace}/{name}"
        if namespace != cluster.namespace:
            text = f"is called by our webhooks or the scheduler, and only namespace {cluster.namespace} was read"
            yield advice("NotLookedAt", text, f"run doctor with --namespace {namespace}", place)
        elif cluster.could_read("EndpointSlice") and not _has_ready_endpoint(cluster, name):
            cause, remedy = _cause(cluster, name)
            text = f"no replica is ready to answer, so that {_consequence(cluster, name)}: {cause}"
            yield problem("NoReadyEndpoint", text, remedy, place)


def creation_now(cluster: ExaminedCluster, labels: Mapping[str, str]) -> str:
    """Say what becomes of GPU pods created now in a namespace with these labels, where the API server's call must fail.

    Empty where nothing speaks against the calls. `cluster` has the EndpointSlices of the webhooks' namespace, if they
    may be read.
    """
    failing = [
        (webhook.spec.get("failurePolicy", "Fail"), webhook.name, cause)
        for webhook in webhooks(cluster)
        if webhook.name in (MUTATE, VALIDATE) and webhook.creates_pods() and webhook.selects(labels)
        for cause in _call_fails(cluster, webhook)
    ]
    if not failing:
        return ""
    policy, name, cause = min(failing)  # Fail comes before Ignore, and mutate before validate
    passes = "created unchanged" if name == MUTATE else "not validated"
    result = "each creation of a GPU pod is refused" if policy == "Fail" else f"each GPU pod is {passes}"
    return f"{result} now: {cause}, and webhook {name} has failurePolicy {policy}; gpu-usher doctor says more"


def _call_fails(cluster: ExaminedCluster, webhook: Webhook) -> Iterator[str]:
    """Say why no call of a webhook succeeds; nothing for one with a URL, which only the API server need reach."""
    client = webhook.spec.get("clientConfig") or {}
    if not (service := client.get("service")):
        return
    namespace, name = str(service.get("namespace")), str(service.get("name"))
    read = cluster.could_read("EndpointSlice") and namespace == cluster.namespace
    if read and not _has_ready_endpoint(cluster, name):
        yield f"no replica of gpu-usher is ready to answer (Service {namespace}/{name})"
    elif not client.get("caBundle"):
        yield "the webhook has no caBundle, without which its certificate is not accepted"


def _called_services(cluster: ExaminedCluster) -> set[tuple[str, str]]:
    """List the namespace and name of each Service that our webhooks or the scheduler's configuration name."""
    services = {
        (str(service.get("namespace")), str(service.get("name")))
        for webhook in webhooks(cluster)
        if webhook.ours and (service := (webhook.spec.get("clientConfig") or {}).get("service"))
    }
    for host in cluster.extender_hosts:
        if (named := _SERVICE_HOST.fullmatch(host)) is not None:
            services.add((named[2], named[1]))
        services |= {
            (cluster.namespace, item["metadata"]["name"])
            for item in cluster.objects_of("Service")
            if host == (item.get("spec") or {}).get("clusterIP")
        }
    return services


def _endpoints(cluster: ExaminedCluster, service: str) -> list[tuple[JSONObject, JSONObject]]:
    """List the endpoints of a Service, each with its EndpointSlice."""
    return [
        (item, endpoint)
        for item in cluster.objects_of("EndpointSlice")
        if (item["metadata"].get("labels") or {}).get(SERVICE_LABEL) == service
        for endpoint in item.get("endpoints") or ()
    ]


def _has_ready_endpoint(cluster: ExaminedCluster, service: str) -> bool:
    return any(_is_ready(endpoint) and item.get("ports") for item, endpoint in _endpoints(cluster, service))


def _is_ready(endpoint: JSONObject) -> bool:
    """Tell whether an endpoint is ready; null counts as yes (discovery.k8s.io/v1 EndpointConditions)."""
    return (endpoint.get("conditions") or {}).get("ready") is not False


def _consequence(cluster: ExaminedCluster, service: str) -> str:
    """Say what becomes of GPU pods, by the failure policies of the webhooks that call the Service."""
    policies = {
        webhook.spec.get("failurePolicy", "Fail")
        for webhook in webhooks(cluster)
        if webhook.name in (MUTATE, VALIDATE)
        and ((webhook.spec.get("clientConfig") or {}).get("service") or {}).get("name") == service
    }
    if not policies:
        return "the scheduler's calls fail"
    return "GPU pods are refused" if "Fail" in policies else "GPU pods are admitted without being reviewed"


def _cause(cluster: ExaminedCluster, name: str) -> tuple[str, str]:
    """Say why a Service has no ready endpoint, and the remedy."""
    service = next((item for item in cluster.objects_of("Service") if item["metadata"]["name"] == name), None)
    if service is None and cluster.could_read("Service"):
        return "there is no such Service", APPLY
    if any(_is_ready(endpoint) for _, endpoint in _endpoints(cluster, name)):
        return "its targetPort is none of its pods' ports", APPLY
    selector = ((service or {}).get("spec") or {}).get("selector") or {}
    serving = [item for item in cluster.objects_of("Deployment") if _labels(item).items() >= selector.items()]
    if not cluster.objects_of("Deployment"):
        return f"there is no Deployment in namespace {cluster.namespace}", APPLY
    if not serving:
        pairs = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        return f"its selector {pairs} matches the pods of no Deployment", APPLY
    scaled = [item["metadata"]["name"] for item in serving if _desired(item) == 0]
    if len(scaled) == len(serving):
        return f"Deployment {scaled[0]} is scaled to 0", _scale(cluster, scaled[0])
    first, namespace = serving[0]["metadata"]["name"], cluster.namespace
    flags = "".join(f" -l {key}={value}" for key, value in sorted(selector.items())[-1:])
    text = f"none of the {sum(map(_desired, serving))} pods of Deployment {first} is ready"
    if said := _last_words(cluster, selector):
        return (
            f"{text}: {said}",
            f"correct the cause that it names; kubectl -n {namespace} logs deployment/{first} has all of it",
        )
    return text, f"kubectl -n {namespace} describe pods{flags}"


class _ContainerState(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A container's state and the one before, each by name: waiting, running or terminated."""

    name: str
    state: dict[str, _ContainerState] = {}
    last_state: dict[str, _ContainerState] = {}


def _last_words(cluster: ExaminedCluster, selector: Mapping[str, str]) -> str:
    """Return what a container of the selected pods said as it ended, or else why one waits; empty if nothing says it.

    The Deployments have terminationMessagePolicy FallbackToLogsOnError, by which the message is the end of the log.
    """
    pods = [
        pod for pod in cluster.objects_of("Pod") if (pod["metadata"].get("labels") or {}).items() >= selector.items()
    ]
    listed = [(pod.get("status") or {}).get("containerStatuses") or () for pod in pods]
    statuses = msgspec.convert([one for some in listed for one in some], list[_ContainerStatus])
    states = [(one.name, state) for one in statuses for state in (one.state, one.last_state)]
    for kind in ("terminated", "waiting"):
        for name, state in states:
            if kind in state and (lines := state[kind].message.strip().splitlines()):
                return f"container {name}: {lines[-1][-LONGEST_WORDS:]}"
    return ""


LONGEST_WORDS = 300
"""Characters of the end of a container's last line that are shown; the cause stands at its end. A guess."""


def _labels(deployment: JSONObject) -> dict[str, str]:
    template = (deployment.get("spec") or {}).get("template") or {}
    return dict((template.get("metadata") or {}).get("labels") or {})


def _desired(deployment: JSONObject) -> int:
    return int((deployment.get("spec") or {}).get("replicas", 1))


def _scale(cluster: ExaminedCluster, name: str) -> str:
    replicas = SHIPPED_REPLICAS.get(name, 1)
    return f"kubectl -n {cluster.namespace} scale deployment {name} --replicas={replicas}"


def certificates_keeper(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report that what renews our certificates does not run, as the cause, where one is not accepted or is due."""
    due = any(one.wrong or one.spent >= DUE for one in cluster.certificates)
    for item in cluster.objects_of("Deployment") if due else ():
        if item["metadata"]["name"] == CERTIFICATES and not (item.get("status") or {}).get("availableReplicas"):
            state = "is scaled to 0" if not _desired(item) else "has no available replica"
            remedy = (
                _scale(cluster, CERTIFICATES) if not _desired(item) else f"kubectl -n {cluster.namespace} describe pods"
            )
            text = f"{state}, so that our certificates are not renewed: one is not accepted, or about to expire"
            yield problem("ReplicasUnavailable", text, remedy, object_name("Deployment", item))


DUE = 0.75
"""The share of a certificate's life after which it is renewed for certain (app/tls/authority.py RENEW_AT, 2/3)."""


def deployments(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report our Deployments that are scaled to 0 or lack replicas, but for what no_ready_endpoint has said."""
    told = {finding.check for finding in no_ready_endpoint(cluster)}
    keeper = any(certificates_keeper(cluster))
    for item in sorted(cluster.objects_of("Deployment"), key=lambda item: str(item["metadata"]["name"])):
        name, desired = item["metadata"]["name"], _desired(item)
        available = (item.get("status") or {}).get("availableReplicas", 0)
        if not name.startswith(ADMISSION) or (name == ADMISSION and not available and "NoReadyEndpoint" in told):
            continue
        if name == CERTIFICATES and keeper:
            continue
        without = f": {WITHOUT[name]}" if name in WITHOUT and not available else ""
        finding = problem if not available and name in SHIPPED_REPLICAS else advice
        if desired == 0:
            text, remedy = f"is scaled to 0{without}", _scale(cluster, name)
            yield finding("ReplicasUnavailable", text, remedy, object_name("Deployment", item))
        elif available < desired:
            remedy = f"kubectl -n {cluster.namespace} describe deployment {name}"
            text = f"has {available} of {desired} replicas available{without}"
            yield finding("ReplicasUnavailable", text, remedy, object_name("Deployment", item))


def registries_that_are_silent(since: Mapping[str, str]) -> Iterator[Finding]:
    """Report registries of images that do not answer the component image-facts, each `since` a time."""
    remedy = "/statusz (images) has its last error; look at registries.yaml, the CA, and egress (NetworkPolicy)"
    for registry, time in sorted(since.items()):
        text = f"does not answer since {time}: images that were not read before are judged by their names"
        yield advice("RegistrySilent", text, remedy, f"Registry {registry}")

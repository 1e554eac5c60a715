# SPDX-License-Identifier: Apache-2.0
"""Random pods in random namespaces: what we say that the API server refuses is what its dry run refuses, in its words.

300 namespaces have quotas with scopes, limit ranges and levels of Pod Security; a pod of random containers, classes and
security settings is offered to each. Quotas are half used by what their status says.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx

from app.cluster.files import read_knowledge
from app.intree.api_server import NewPod, api_server_refusals, completed
from app.kube.admission_objects import ADMISSION_TYPES, AdmissionObjects
from app.kube.objects import RuntimeClass
from app.kube.records import read_record
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually

NAMESPACES = 300
GPU = "nvidia.com/gpu"
CLASSES: tuple[Object, ...] = (
    {"metadata": {"name": "plain"}, "handler": "runc"},
    {
        "metadata": {"name": "kata"},
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m", "memory": "2Gi"}},
        "scheduling": {"nodeSelector": {"kata": "true"}, "tolerations": [{"key": "kata", "operator": "Exists"}]},
    },
)
PRIORITIES = {"batch": 10, "urgent": 1000}
COUNTED = (
    f"requests.{GPU}",
    "requests.cpu",
    "cpu",
    "limits.cpu",
    "requests.memory",
    "memory",
    "limits.memory",
    "pods",
    "count/pods",
    GPU,
    f"limits.{GPU}",
    "configmaps",
    "requests.ephemeral-storage",
)
SCOPED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods")
AMOUNTS = {
    "cpu": ("250m", "1", "2", "2500m", "8"),
    "memory": ("1Gi", "512Mi", "1536Mi", "4Gi"),
    GPU: ("0", "1", "2", "4"),
    "ephemeral-storage": ("1Gi", "3Gi"),
}
LEVELS: tuple[Mapping[str, str], ...] = (
    *({},) * 4,
    *({"pod-security.kubernetes.io/enforce": level} for level in ("baseline", "restricted", "restricted")),
    {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.24"},
    {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.28"},
)


def amount(rng: random.Random, name: str) -> str:
    bare = next((known for known in AMOUNTS if name.endswith(known)), "")
    return rng.choice(AMOUNTS[bare]) if bare else str(rng.randint(0, 3))


def some(rng: random.Random, names: tuple[str, ...], most: int) -> dict[str, str]:
    return {name: amount(rng, name) for name in rng.sample(names, rng.randint(0, most))}


def quota(rng: random.Random, name: str) -> Object:
    """Write a quota with a status that says what is used."""
    hard = some(rng, COUNTED, 4) or {f"requests.{GPU}": "2"}
    spec: Object = {"hard": hard}
    kind = rng.random()
    if kind < 0.15:
        spec["scopes"] = [rng.choice(["Terminating", "NotTerminating", "NotBestEffort"])]
    elif kind < 0.2:
        spec["scopes"], spec["hard"] = ["BestEffort"], {"pods": amount(rng, "pods")}
    elif kind < 0.4:
        requirement: Object = {
            "scopeName": "PriorityClass",
            "operator": rng.choice(["In", "NotIn", "Exists", "DoesNotExist"]),
        }
        requirement |= {"values": [rng.choice(list(PRIORITIES))]} if "In" in requirement["operator"] else {}
        spec["scopeSelector"] = {"matchExpressions": [requirement]}
    elif kind < 0.45:
        spec["hard"], spec["scopes"] = {"pods": "0"}, ["CrossNamespacePodAffinity"]
    if "scopes" in spec or "scopeSelector" in spec:  # which are valid for these resources only
        spec["hard"] = {name: value for name, value in spec["hard"].items() if name in SCOPED} or {"pods": "0"}
    used = {
        key: rng.choice(["0", "0", value, "1" if key.endswith(("cpu", GPU)) else "0"])
        for key, value in spec["hard"].items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": spec,
        "status": {"hard": spec["hard"], "used": used},
    }


def limit_range(rng: random.Random) -> Object:
    item: Object = {"type": rng.choice(["Container", "Container", "Pod"])}
    resource = rng.choice(["cpu", "memory", GPU])
    bounds = sorted(rng.sample(range(len(AMOUNTS[resource])), 2), key=lambda at: _number(AMOUNTS[resource][at]))
    least, most = (AMOUNTS[resource][at] for at in bounds)
    kind = rng.random()
    if kind < 0.35 or item["type"] == "Pod":
        item |= {"max": {resource: most}} if rng.random() < 0.6 else {"min": {resource: least}}
    elif kind < 0.7 and resource != GPU:
        item |= {"default": {resource: most}, "defaultRequest": {resource: least}}
    elif resource != GPU:
        item |= {"maxLimitRequestRatio": {resource: rng.choice(["1", "2", "4"])}}
    else:
        item |= {"max": {resource: most}, "min": {resource: least}}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "bounds"}, "spec": {"limits": [item]}}


def _number(text: str) -> float:
    scale = {"Gi": 2**30, "Mi": 2**20, "m": 1e-3}
    suffix = next((end for end in scale if text.endswith(end)), "")
    return float(text.removesuffix(suffix)) * scale.get(suffix, 1)


def container(rng: random.Random, name: str) -> Object:
    """Write a container whose requests are not above its limits."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for resource in ("cpu", "memory", "ephemeral-storage"):
        two = sorted((amount(rng, resource), amount(rng, resource)), key=_number)
        requests |= {resource: two[0]} if rng.random() < 0.5 else {}
        limits |= {resource: two[1]} if rng.random() < 0.4 else {}
    if rng.random() < 0.6:
        limits[GPU] = amount(rng, GPU)
    made: Object = {
        "name": name,
        "image": "registry.example/app:1",
        "resources": {"requests": requests, "limits": limits},
    }
    context = security(rng)
    return {**made, **({"securityContext": context} if context else {}), **ports(rng)}


def ports(rng: random.Random) -> Object:
    if rng.random() < 0.85:
        return {}
    return {"ports": [{"containerPort": 8080, **({"hostPort": 8080} if rng.random() < 0.4 else {})}]}


def security(rng: random.Random) -> Object:
    """Write a securityContext: good for restricted, or with some fields others, or none."""
    if (kind := rng.random()) < 0.3:
        return {}
    good: Object = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if kind < 0.75:
        return good
    change: Object = rng.choice(
        [
            {"privileged": True, "allowPrivilegeEscalation": True},
            {"runAsUser": 0},
            {"runAsUser": 1000, "runAsNonRoot": False},
            {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
            {"capabilities": {"add": ["IPC_LOCK"]}},
            {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
            {"seccompProfile": {"type": "Unconfined"}},
            {"seLinuxOptions": {"type": "container_engine_t"}},
            {"seLinuxOptions": {"user": "system_u"}},
            {"appArmorProfile": {"type": "Unconfined"}},
            {"capabilities": {"drop": ["all"]}},
            {"procMount": "Default"},
        ]
    )
    return {**good, **change}


def pod(rng: random.Random) -> Object:
    spec: Object = {
        "containers": [container(rng, f"c{at}") for at in range(rng.randint(1, 2))],
        "restartPolicy": "Never",
    }
    if rng.random() < 0.3:
        init = container(rng, "i0")
        spec["initContainers"] = [
            {**init, "restartPolicy": "Always"} if rng.random() < 0.5 else init,
            container(rng, "i1"),
        ]
    if rng.random() < 0.5:
        spec["securityContext"] = rng.choice(
            [
                {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                {"runAsNonRoot": False},
                {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]},
                {"runAsUser": 0},
                {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
                {"seccompProfile": {"type": "Unconfined"}},
            ]
        )
    for chance, change in (
        (0.15, {"priorityClassName": rng.choice([*PRIORITIES, "missing", "system-node-critical"])}),
        (0.15, {"runtimeClassName": rng.choice(["plain", "kata", "kata", "missing"])}),
        (0.1, {"serviceAccountName": rng.choice(["default", "trainer", "missing"])}),
        (0.2, {"activeDeadlineSeconds": 600}),
        (0.08, {"hostNetwork": True}),
        (0.05, {"hostIPC": True}),
        (0.04, {"hostUsers": False}),
        (0.3, {"volumes": [volume(rng)]}),
        (0.1, {"nodeSelector": {"kata": rng.choice(["true", "false"])}}),
        (0.06, {"resources": {"requests": {"cpu": "16", "memory": "64Gi"}, "limits": {"cpu": "20", "memory": "64Gi"}}}),
        (
            0.08,
            {
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaces": ["default"]}
                        ]
                    }
                }
            },
        ),
    ):
        spec |= change if rng.random() < chance else {}
    if spec.get("hostNetwork") or spec.get("hostIPC"):  # with which these are not valid
        spec.pop("hostUsers", None)
        spec.get("securityContext", {}).pop("sysctls", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def volume(rng: random.Random) -> Object:
    return {
        "name": "v",
        **rng.choice(
            [
                {"hostPath": {"path": "/dev/shm"}},
                {"emptyDir": {"medium": "Memory"}},
                {"nfs": {"server": "nas.example", "path": "/"}},
                {"persistentVolumeClaim": {"claimName": "data"}},
            ]
        ),
    }


def build(plane: ControlPlane, seed: int) -> tuple[dict[str, Mapping[str, str]], AdmissionObjects]:
    """Create the namespaces with their objects, and return their labels and the objects as we know them."""
    rng, objects, labels = random.Random(seed), AdmissionObjects(), {}
    api = plane.api
    for name, value in PRIORITIES.items():
        put(
            api,
            objects,
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "PriorityClass",
            {"metadata": {"name": name}, "value": value},
        )
    for each in CLASSES:
        assert api.try_create("/apis/node.k8s.io/v1/runtimeclasses", each).status_code == 201
    names = [f"n{at}" for at in range(NAMESPACES)]
    for name in (*names, "last"):
        labels[name] = rng.choice(LEVELS) if name in names else {"pod-security.kubernetes.io/enforce": "baseline"}
        namespace = {"metadata": {"name": name, "labels": labels[name]}}
        assert api.try_create("/api/v1/namespaces", namespace).status_code == 201
    for name in (*names, "last"):
        path = f"/api/v1/namespaces/{name}"
        put(api, objects, f"{path}/serviceaccounts", "ServiceAccount", {"metadata": {"name": "trainer"}})
        if rng.random() < 0.5 or name == "last":
            body = (
                limit_range(rng)
                if name in names
                else {"metadata": {"name": "m"}, "spec": {"limits": [{"type": "Pod", "min": {"cpu": "1"}}]}}
            )
            put(api, objects, f"{path}/limitranges", "LimitRange", body)
    for name in (*names, "last"):
        wanted = [quota(rng, f"q{at}") for at in range(rng.choice([0, 1, 1, 2]))]
        for body in (
            wanted
            if name in names
            else [
                {
                    "metadata": {"name": "q"},
                    "spec": {"hard": {"pods": "0"}},
                    "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}},
                }
            ]
        ):
            put(api, objects, f"/api/v1/namespaces/{name}/resourcequotas", "ResourceQuota", body)
    objects.listed = set(ADMISSION_TYPES)
    return labels, objects


def put(api: Any, objects: AdmissionObjects, path: str, kind: str, body: Object) -> None:
    """Create an object, with its status, and note it as the API server has stored it."""
    answer = api.try_create(path, body)
    assert answer.status_code == 201, (body, answer.text)
    stored = answer.json()
    if "status" in body:
        stored["status"] = body["status"]
        answer = api.client.put(f"{path}/{stored['metadata']['name']}/status", json=stored)
        assert answer.status_code == 200, answer.text
        stored = answer.json()
    metadata = stored["metadata"]
    key = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]
    objects.put(kind, key, read_record(ADMISSION_TYPES[kind], stored))


def dry_run(plane: ControlPlane, namespace: str, body: Object) -> httpx.Response:
    return plane.api.client.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", json=body)


def caught_up(plane: ControlPlane) -> bool:
    """Tell whether the API server's caches have the last object of each kind: one pod for each, which it refuses."""
    large = {"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}
    specs: tuple[tuple[str, Object], ...] = (
        ("minimum cpu", {"containers": [{"name": "c", "image": "i:1"}]}),
        ("PodSecurity", {"containers": [large], "hostPID": True}),
        ("exceeded quota", {"containers": [large]}),
    )
    return all(word in dry_run(plane, "last", {"metadata": {"name": "p"}, "spec": spec}).text for word, spec in specs)


def test_what_the_api_server_refuses_is_what_we_say_and_in_its_words(plane: ControlPlane) -> None:
    labels, objects = build(plane, 22)
    eventually("caches have all objects", lambda: caught_up(plane))
    classes = {each["metadata"]["name"]: read_record(RuntimeClass, each) for each in CLASSES}
    security, rng, differing = read_knowledge().pod_security, random.Random(44), []
    plugins: Counter[str] = Counter()
    for namespace in (name for name in labels if name != "last"):
        body = pod(rng)
        answer = dry_run(plane, namespace, body)
        message = "" if answer.status_code == 201 else answer.json()["message"]
        new = completed(body, namespace, objects, classes)
        ours = api_server_refusals(NewPod(new, namespace, labels[namespace], objects, classes, security, {}))
        plugins[ours[0].about[0] if ours else "none"] += 1
        if bool(ours) != bool(message) or (
            ours and not any(same(refusal.about[0], refusal.message, message) for refusal in ours)
        ):
            differing.append(f"{namespace}: {message}; ours: {[each.message for each in ours]}; {body['spec']}")

    assert not differing, "\n".join(differing)
    assert min(plugins[name] for name in ("none", "LimitRanger", "PodSecurity", "ResourceQuota")) >= 20, plugins
    assert {"ServiceAccount", "Priority", "RuntimeClass"} <= plugins.keys()


def same(plugin: str, ours: str, message: str) -> bool:
    """Tell whether the server's message has our words; of Pod Security the names of all violations."""
    if plugin == "PodSecurity":
        head, _, rest = ours.partition(": ")
        return head in message and all(part.rpartition("), ")[2] in message for part in rest.split(" (")[:-1])
    if plugin == "Validation":
        return ours.rpartition(": ")[2] in message
    return ours in message

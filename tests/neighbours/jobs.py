# SPDX-License-Identifier: Apache-2.0
"""Jobs of several kinds for a queue of Kueue, and the pods that their controllers would make of the stored templates.

Of these kinds batch/v1 and JobSet have their controllers here. The others have their own definitions from upstream's
modules, and Kueue, which suspends and starts them all, reads and writes nothing but these objects.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.admission.queued_jobs import template_targets_of
from tests.builders import knowledge
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import OURS
from tests.neighbours.kueue import GPU, QUEUE

PATHS: Mapping[str, tuple[str, str]] = {
    "Job": ("batch/v1", "jobs"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "RayJob": ("ray.io/v1", "rayjobs"),
    "RayCluster": ("ray.io/v1", "rayclusters"),
    "MPIJob": ("kubeflow.org/v2beta1", "mpijobs"),
    "AppWrapper": ("workload.codeflare.dev/v1beta2", "appwrappers"),
}
FRAMEWORKS = (
    "batch/job",
    "pod",
    "jobset.x-k8s.io/jobset",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "kubeflow.org/mpijob",
    "workload.codeflare.dev/appwrapper",
)
"""The names by which Kueue's configuration enables these kinds."""


def pod_template(gpus: int, restart: str = "Never", **annotations: str) -> Object:
    """Write a template whose container requests GPUs, or a CPU."""
    amounts = {GPU: gpus} if gpus else {"cpu": "100m"}
    resources = {"requests": amounts, "limits": amounts}
    container = {"name": "main", "image": "train:1", "resources": resources}
    metadata = {"annotations": {f"gpu-usher.io/{key}": value for key, value in annotations.items()}}
    return {"metadata": metadata, "spec": {"restartPolicy": restart, "schedulerName": OURS, "containers": [container]}}


def _job_spec(template: Object) -> Object:
    return {"parallelism": 1, "completions": 1, "suspend": True, "template": template}


def _spec(kind: str, template: Object, idle: Object) -> Object:
    """Write the spec of a kind: one pod of the template, and one without GPUs where the kind has such a role."""
    job = {**_job_spec(template)}
    del job["suspend"]
    cluster = {
        "headGroupSpec": {"rayStartParams": {}, "template": idle},
        "workerGroupSpecs": [
            {
                "groupName": "gpus",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "rayStartParams": {},
                "template": template,
            }
        ],
    }
    specs: Mapping[str, Any] = {
        "Job": {**job, "suspend": True},
        "JobSet": {
            "suspend": True,
            "replicatedJobs": [
                {"name": "workers", "replicas": 1, "template": {"spec": {**job, "completionMode": "Indexed"}}}
            ],  # the default, which JobSet writes at creation alone and then does not let change
        },
        "RayJob": {
            "suspend": True,
            "entrypoint": "true",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster,
        },
        "RayCluster": {"suspend": True, **cluster},
        "MPIJob": {
            "runPolicy": {"suspend": True},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": idle},
                "Worker": {"replicas": 1, "template": template},
            },
        },
        "AppWrapper": {
            "suspend": True,
            "components": [
                {
                    "podSets": [{"replicas": 1, "path": "template.spec.template"}],
                    "template": {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "metadata": {"name": "wrapped"},
                        "spec": job,
                    },
                }
            ],
        },
    }
    spec: Object = specs[kind]
    return spec


def queued_job(kind: str, name: str, namespace: str, template: Object) -> Object:
    """Write a suspended job of a kind for the namespace's queue."""
    version, _ = PATHS[kind]
    metadata = {"name": name, "namespace": namespace, "labels": {QUEUE: "queue"}}
    idle = pod_template(0)
    idle["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]  # of the flavours, which all have the taint
    for one in (template, idle):
        one["spec"]["restartPolicy"] = "Never" if not kind.startswith("Ray") else "Always"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": _spec(kind, template, idle)}


def path_of(document: Object) -> str:
    """Return the path of a job at the API server."""
    version, resource = PATHS[document["kind"]]
    metadata = document["metadata"]
    return f"/apis/{version}/namespaces/{metadata['namespace']}/{resource}/{metadata['name']}"


def create(plane: ControlPlane, document: Object) -> Object:
    """Create a job through the API server and its webhooks."""
    return plane.api.create(path_of(document).rpartition("/")[0], document)


def is_suspended(document: Object) -> bool:
    """Tell whether Kueue has not started a job yet."""
    spec = document["spec"]
    return bool((spec.get("runPolicy") or spec).get("suspend"))


def stored_templates(document: Object) -> Iterator[Object]:
    """Yield the templates of a stored job that request GPUs."""
    if document["kind"] == "Job":
        templates = [document["spec"]["template"]]
    else:
        version, resource = PATHS[document["kind"]]
        group = version.partition("/")[0]
        request = {
            "resource": {"group": group, "resource": resource},
            "operation": "CREATE",
            "object": document,
        }
        templates = [dict(target.document) for target in template_targets_of(request, knowledge().workloads)]
    for template in templates:
        if any(GPU in (one["resources"].get("limits") or {}) for one in template["spec"]["containers"]):
            yield template


def pod_of(document: Object, template: Object) -> Object:
    """Write the pod that a controller makes of a template; Kueue completes that of an AppWrapper beside it."""
    metadata = document["metadata"]
    components = document["spec"].get("components") or ()
    pod_sets = [pod_set for component in components for pod_set in component.get("podSetInfos") or ()]
    own = template.get("metadata") or {}
    spec = {key: value for key, value in template["spec"].items() if key != "restartPolicy"}
    for pod_set in pod_sets:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **(pod_set.get("nodeSelector") or {})}
    owner = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-pod",
            "namespace": metadata["namespace"],
            "annotations": own.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }

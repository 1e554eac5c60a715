# SPDX-License-Identifier: Apache-2.0
"""Which pods share a template: those of one controller, whatever it writes into each of them, and no others."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.explain.pending_cause import template_hash
from tests.builders import gpus, pod

SHM = {"name": "shm", "emptyDir": {"medium": "Memory"}}


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}}}


def admitted(suffix: str = "abcde", change: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Write a pod as the API server stores it, with `change` merged into its metadata and spec.

    `more` are fields of the container.
    """
    volume = f"kube-api-access-{suffix}"
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": volume, "mountPath": "/var/run/secrets"}]
    made = pod(
        gpus(1, **{"volumeMounts": mounts, **more}),
        annotations={"products": "H100"},
        volumes=[SHM, {"name": volume, "projected": {"sources": []}}],
    )
    for part in ("metadata", "spec"):
        made[part] |= (change or {}).get(part, {})
    return made


MATES = {
    "token volume": admitted("fghij"),
    "name and UID": admitted(change={"metadata": {"name": "q", "uid": "u-2", "resourceVersion": "7"}}),
    "Job": admitted(change=labelled(batch__kubernetes_io__job_name="sweep-2", controller_uid="u-2")),
    "Indexed Job": admitted(
        change={"spec": {"hostname": "train-1"}, **labelled(batch__kubernetes_io__job_completion_index="1")}
    ),
    "StatefulSet": admitted(
        change={"spec": {"hostname": "web-1", "subdomain": "web"}, **labelled(apps__kubernetes_io__pod_index="1")}
    ),
    "JobSet": admitted(change=labelled(jobset_sigs_k8s_io__job_index="1", jobset_sigs_k8s_io__job_key="5f3c")),
    "sweep": admitted(command=["train"], args=["--rate=0.1"]),
    "PyTorchJob": admitted(env=[{"name": "RANK", "value": "1"}]),
    "our record": admitted(
        change={"metadata": {"annotations": {"gpu-usher.io/products": "H100", "gpu-usher.io/decision": "{}"}}}
    ),
    "annotation of Argo": admitted(
        change={"metadata": {"annotations": {"gpu-usher.io/products": "H100", "workflows.argoproj.io/node-id": "7"}}}
    ),
    "a controller's times": admitted(change={"metadata": {"managedFields": [{"time": "now"}], "generation": 2}}),
}


@pytest.mark.parametrize("mate", MATES.values(), ids=MATES)
def test_pods_of_one_template_are_alike(mate: Mapping[str, Any]) -> None:
    """F139: what their controller, admission and the API server write into each of them does not count."""
    assert template_hash(mate, frozenset()) == template_hash(admitted(), frozenset())


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"job-name": "sweep-2"}},
}
OTHERS = {
    "namespace": admitted(change={"metadata": {"namespace": "team-b"}}),
    "annotation of ours": admitted(change={"metadata": {"annotations": {"gpu-usher.io/products": "A100"}}}),
    "label that a policy matches": admitted(change=labelled(tier="batch")),
    "amount": admitted(resources={"limits": {"nvidia.com/gpu": "2"}}),
    "image": admitted(image="train:2"),
    "variable that is read": admitted(env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}]),
    "host port": admitted(ports=[{"hostPort": 8080}]),
    "volume of its own": admitted(
        change={"spec": {"volumes": [SHM, {"name": "data", "persistentVolumeClaim": {"claimName": "data-1"}}]}}
    ),
    "node selector": admitted(change={"spec": {"nodeSelector": {"zone": "a"}}}),
    "node of a DaemonSet": admitted(
        change={
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["n-1"]}]}]
                        }
                    }
                }
            }
        }
    ),
    "spread over its own Job": admitted(change={"spec": {"topologySpreadConstraints": [SPREAD]}}),
    "scheduling gate": admitted(change={"spec": {"schedulingGates": [{"name": "g"}]}}),
    "priority": admitted(change={"spec": {"priority": 7}}),
    "claim": admitted(change={"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": "c-1"}]}}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_pods_that_may_wait_for_different_causes_are_not_alike(other: Mapping[str, Any]) -> None:
    """F139: whatever policies, filters or kube-scheduler's own checks read tells templates apart."""
    keys = frozenset({"tier"})
    assert template_hash(other, keys) != template_hash(admitted(), keys)

# SPDX-License-Identifier: Apache-2.0
"""Events on the pods of real Jobs, as the job controller and the API server's admission plugins write them."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes
from tests.controlplane.kubectl import Object
from tests.e2e.stage import DEPLOY, Service, create_namespace, eventually, pods_of, serving
from tests.e2e.waiting_causes import CASES, WaitingCase, fleet

TEAM = "team"
PODS_OF_A_JOB = 100
TOLD_SECONDS = 300
"""303 Events at five a second take a minute."""
CREATED_SECONDS = 120
CHOSEN = tuple(case for case in CASES if case.name in ("not-here", "too-many", "large-model"))


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service that writes Events. No scheduler is needed: a pod that nobody places waits as well."""
    add_nodes(plane.api, fleet())
    create_namespace(plane, "gpu-usher")
    create_namespace(plane, TEAM)
    files = (DEPLOY / "components" / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake"))
    applied = plane.kubectl("apply", *(word for file in files for word in ("-f", str(file))))
    assert applied.code == 0, applied.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(plane) as running:
            yield running


def job(case: WaitingCase) -> Object:
    """Write an Indexed Job, of which each pod gets an index in its labels, its annotations and its hostname."""
    pod = case.document(TEAM)
    template = {
        "metadata": {"annotations": pod["metadata"]["annotations"]},
        "spec": {**pod["spec"], "restartPolicy": "Never"},
    }
    spec = {"parallelism": PODS_OF_A_JOB, "completions": PODS_OF_A_JOB, "completionMode": "Indexed"}
    metadata = {"name": case.name, "namespace": TEAM}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}}


def test_every_pod_of_three_jobs_is_told_of(plane: ControlPlane, service: Service) -> None:
    """F139: more pods than templates that are explained at a time, each with a token volume of its own."""
    plane.api.create_all(f"/apis/batch/v1/namespaces/{TEAM}/jobs", map(job, CHOSEN))
    number = PODS_OF_A_JOB * len(CHOSEN)
    eventually("all pods exist", lambda: len(pods_of(plane, TEAM)) == number, CREATED_SECONDS)
    volumes = {volume["name"] for pod in pods_of(plane, TEAM) for volume in pod["spec"]["volumes"]}
    assert len(volumes) == number

    eventually(
        "all are told of",
        lambda: service.metric("gpu_usher_events_total", result="created") == number + len(CHOSEN),
        TOLD_SECONDS,
    )

    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events")
    told = Counter(
        (event["regarding"]["kind"], event["reason"])
        for event in events
        if event.get("reportingController") == "gpu-usher"
    )
    assert told == {
        (kind, case.reason): count for case in CHOSEN for kind, count in (("Job", 1), ("Pod", PODS_OF_A_JOB))
    }
    assert service.metric("gpu_usher_events_total", result="refused") == 0

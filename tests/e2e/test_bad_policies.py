# SPDX-License-Identifier: Apache-2.0
"""Bad edits of policies with kubectl: refused at the door, and served around where one came in while we were away.

The test is the kubelet that renews the mounted ConfigMap. One process serves with the rights of deploy/base, and
another writes Events, conditions and the last good set.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    DEPLOY,
    Service,
    create_namespace,
    eventually,
    grant,
    install_webhooks,
    plain_pod,
    remove_webhooks,
    serving,
)

OURS, MOUNTED, LAST_GOOD = "gpu-usher", "gpu-usher-policies", "gpu-usher-policies-last-good"
CONFIG_MAPS = f"/api/v1/namespaces/{OURS}/configmaps"
EVENTS = DEPLOY / "components" / "events"
CRD = DEPLOY / "components" / "crd"
GOOD = policy("team", "priority: 50, admission: {maxGPUsPerPod: 2}")
BAD = policy("team", "priority: 50, admission: {maxGpusPerPod: 4}")
FIELD = "team.yaml:4:34: spec.admission.maxGpusPerPod: unknown field, did you mean maxGPUsPerPod?"
DENIED = f'admission webhook "policies.gpu-usher.io" denied the request: gpu-usher: configmap {OURS}/{MOUNTED}: {FIELD}'


class Mount:
    """The mounted ConfigMap: `renew` does what a kubelet does with an optional volume."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.folder = plane.folder / "mounted"
        self.folder.mkdir()

    def renew(self) -> None:
        stored = self._plane.api.client.get(f"{CONFIG_MAPS}/{MOUNTED}")
        data = stored.json()["data"] if stored.is_success else {}
        for file in self.folder.iterdir():
            if file.name not in data:
                file.unlink()
        for name, text in data.items():
            (self.folder / name).write_text(text, "utf-8")


@pytest.fixture(scope="module")
def mount(plane: ControlPlane) -> Mount:
    """Apply the shipped policies with one of a team, the definition, and what the writer of Events needs."""
    add_nodes(plane.api, [node_object("h100", offers={"nvidia.com/gpu": 8})])
    create_namespace(plane, OURS)
    files = [EVENTS / f"{name}.yaml" for name in ("rbac", "lease", "wake", "last-good")]
    files += [CRD / "gpupolicies.yaml", CRD / "rbac.yaml"]
    applied = plane.kubectl("apply", *(word for file in files for word in ("-f", str(file))))
    assert applied.code == 0, applied.err
    applied = plane.kubectl("apply", "-k", str(DEPLOY.parent / "policies"))
    assert applied.code == 0, applied.err
    plane.kubectl("patch", "configmap", MOUNTED, "-n", OURS, "-p", json.dumps({"data": {"team.yaml": GOOD}}))
    made = Mount(plane)
    made.renew()
    return made


@pytest.fixture(scope="module")
def service(plane: ControlPlane, mount: Mount) -> Iterator[Service]:
    """The process that serves, beside the one that writes."""
    grant(plane)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_USHER_EVENTS", "true")
        writer = Service(plane, "writer", kubeconfig=str(plane.kubeconfig("admin")), policies=str(mount.folder))
    try:
        with serving(plane, policies=str(mount.folder)) as running:
            writer.wait_ready()
            eventually("the good set is kept", lambda: "team.yaml" in last_good(plane))
            yield running
    finally:
        writer.process.stop()


@pytest.fixture
def guarded(plane: ControlPlane, service: Service, mount: Mount) -> Iterator[Service]:
    """The service with its webhooks, and the good policies in force; they are so again after the test."""
    install_all_webhooks(plane, service)
    yield service
    remove_all_webhooks(plane)
    eventually("the mistake is mended", lambda: edit(plane, GOOD).code == 0)
    mount.renew()
    eventually("it is taken", lambda: service.health()["policies"]["error"] is None)
    eventually("it is kept", lambda: last_good(plane).get("team.yaml") == GOOD)


def install_all_webhooks(plane: ControlPlane, service: Service) -> None:
    install_webhooks(plane, service)
    document = yaml.safe_load((CRD / "webhook.yaml").read_text("utf-8"))
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    for webhook in document["webhooks"]:
        webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"], "caBundle": ca}
    assert plane.kubectl("apply", "-f", "-", stdin=json.dumps(document)).code == 0
    eventually("edits are asked about", lambda: edit(plane, "spec: {", dry_run=True).code == 1)


def remove_all_webhooks(plane: ControlPlane) -> None:
    remove_webhooks(plane)
    plane.api.delete("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gpu-usher-policies")


def edit(plane: ControlPlane, text: str, dry_run: bool = False) -> KubectlResult:
    """Change the team's policy in the mounted ConfigMap, which is made anew if it is gone."""
    if not plane.api.client.get(f"{CONFIG_MAPS}/{MOUNTED}").is_success:
        assert plane.kubectl("apply", "-k", str(DEPLOY.parent / "policies")).code == 0
    change = json.dumps({"data": {"team.yaml": text}})
    words = ["--dry-run=server"] if dry_run else []
    return plane.kubectl("patch", "configmap", MOUNTED, "-n", OURS, "-p", change, *words)


def spoil(plane: ControlPlane, mount: Mount, service: Service) -> None:
    """Bring a bad edit in while nobody is asked, and restart the replica meanwhile, as a drained node does."""
    remove_all_webhooks(plane)
    eventually("nobody refuses it", lambda: edit(plane, BAD).code == 0)
    mount.renew()
    restart(plane, service)


def restart(plane: ControlPlane, service: Service) -> None:
    """Restart the replica, and let the API server ask it about pods again."""
    service.process.stop()
    service.restart()
    install_all_webhooks(plane, service)


def last_good(plane: ControlPlane) -> Object:
    return plane.api.get(f"{CONFIG_MAPS}/{LAST_GOOD}").get("data") or {}


def outcomes(plane: ControlPlane) -> list[bool]:
    """Tell whether pods of one, two and three GPUs are admitted; the team's policy allows two."""
    pods = [plain_pod("default", {"nvidia.com/gpu": count}, f"p{count}") for count in (1, 2, 3)]
    return [plane.kubectl.create(pod, dry_run=True).code == 0 for pod in pods]


def test_bad_edit_of_the_mounted_config_map_is_refused_however_it_is_made(
    plane: ControlPlane, guarded: Service, tmp_path: Path
) -> None:
    """F131: by patch, replace, apply, server-side apply and edit; nothing of it is stored."""
    stored = plane.api.get(f"{CONFIG_MAPS}/{MOUNTED}")
    changed = {**stored, "data": {**stored["data"], "team.yaml": BAD}}
    plain = {**changed, "metadata": {"name": MOUNTED, "namespace": OURS, "labels": stored["metadata"]["labels"]}}
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/maxGPUsPerPod/maxGpusPerPod/ "$1"\n', "utf-8")
    editor.chmod(0o755)

    answers = [
        edit(plane, BAD),
        plane.kubectl("replace", "-f", "-", stdin=json.dumps(changed)),
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(plain)),
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(plain)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBE_EDITOR", str(editor))
        answers.append(plane.kubectl("edit", "configmap", MOUNTED, "-n", OURS))

    assert [answer.code for answer in answers] == [1] * 5
    assert all(DENIED in answer.err for answer in answers[:4])
    assert FIELD in answers[4].err + answers[4].out
    assert plane.api.get(f"{CONFIG_MAPS}/{MOUNTED}")["data"] == stored["data"]
    assert guarded.health()["policies"]["error"] is None


def test_replica_that_restarts_with_a_bad_edit_serves_the_last_good_set(
    plane: ControlPlane, guarded: Service, mount: Mount
) -> None:
    """F76, F131: pods are admitted after each restart, and the error is in /readyz, the metric and an Event."""
    good = guarded.health()["policies"]["hash"]

    spoil(plane, mount, guarded)

    for _ in range(2):
        assert outcomes(plane) == [True, True, False]
        policies = guarded.health()["policies"]
        assert (policies["hash"], policies["serving"], policies["error"]) == (good, "last good set", FIELD)
        assert guarded.metric("gpu_usher_policy_error") == 1
        restart(plane, guarded)
    described = ["describe", "configmap", MOUNTED, "-n", OURS]
    eventually("the Event is there", lambda: "PolicyNotAccepted" in plane.kubectl(*described).out)
    assert FIELD in plane.kubectl(*described).out


def gpu_policy(name: str, spec: Object) -> str:
    kind = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
    return json.dumps({**kind, "metadata": {"name": name}, "spec": spec})


def columns(plane: ControlPlane) -> dict[str, list[str]]:
    """Return Accepted and Reason of each GPUPolicy, as `kubectl get` prints them."""
    lines = plane.kubectl("get", "gpol", "--no-headers").out.splitlines()
    return {line.split()[0]: line.split()[3:5] for line in lines}


def test_kubectl_get_says_what_has_become_of_each_policy(plane: ControlPlane, guarded: Service) -> None:
    """F131: in force; with a mistake that came in while nobody was asked; and mended."""
    assert plane.kubectl("apply", "-f", "-", stdin=gpu_policy("good", {"priority": 60})).code == 0
    eventually("it is in force", lambda: columns(plane).get("good") == ["True", "InForce"])
    remove_all_webhooks(plane)
    bad = gpu_policy("bad", {"placement": {"products": {"allow": ["H10O"]}}})
    eventually("nobody refuses it", lambda: plane.kubectl("apply", "-f", "-", stdin=bad).code == 0)

    eventually("its mistake is told", lambda: columns(plane).get("bad") == ["False", "Invalid"])
    restart(plane, guarded)
    assert columns(plane) == {"good": ["True", "InForce"], "bad": ["False", "Invalid"]}
    assert outcomes(plane) == [True, True, False]
    stored = plane.api.get("/apis/gpu-usher.io/v1alpha1/gpupolicies/bad")
    assert "did you mean H100?" in stored["status"]["conditions"][0]["message"]

    assert plane.kubectl("delete", "gpol", "bad", "good").code == 0
    eventually("the mistake is gone", lambda: guarded.health()["policies"]["error"] is None)


@pytest.mark.usefixtures("service")
def test_nobody_but_the_writer_may_write_the_last_good_set(plane: ControlPlane) -> None:
    """F104: the identities of deploy/, and a tenant who may do everything in a namespace of his own."""
    bindings = [document for document in yaml.safe_load_all((EVENTS / "rbac.yaml").read_text("utf-8")) if document]
    (writer,) = {
        subject["name"] for document in bindings if document["kind"] == "RoleBinding"
        for subject in document["subjects"] if document["roleRef"]["name"] == "gpu-usher-events"
    }  # fmt: skip
    create_namespace(plane, "tenant")
    plane.kubectl("create", "rolebinding", "all", "-n", "tenant", "--clusterrole=admin", "--user=tina")

    def may(verb: str, user: str) -> str:
        return plane.kubectl("auth", "can-i", verb, f"configmaps/{LAST_GOOD}", "-n", OURS, f"--as={user}").out.strip()

    assert may("patch", f"system:serviceaccount:{OURS}:{writer}") == "yes"
    assert [may(verb, "tina") for verb in ("get", "patch", "update", "delete", "create")] == ["no"] * 5
    assert may("get", f"system:serviceaccount:{OURS}:gpu-usher") == "yes"

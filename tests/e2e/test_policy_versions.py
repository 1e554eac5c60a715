# SPDX-License-Identifier: Apache-2.0
"""GPUPolicy in two versions on a real API server: nothing is lost between them, nor by an upgrade or a rollback (F131).

The former release's definition is the shipped one without the newer version.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.schema import STORAGE_VERSION, VERSIONS
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.docstrings import ROOT
from tests.e2e.stage import DEPLOY, Service, apply_files, eventually
from tests.e2e.test_bad_policies import columns, install_all_webhooks, remove_all_webhooks
from tests.e2e.test_doctor import doctor

ALPHA, BETA = VERSIONS
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpupolicies.gpu-usher.io"
COMPONENTS = DEPLOY / "components"
PAGE = ROOT / "docs" / "reference" / "stability.md"


def definition(*versions: str, storage: str = STORAGE_VERSION) -> Object:
    """Return the shipped definition with these versions alone, all of them by default."""
    document: Object = yaml.safe_load((COMPONENTS / "crd" / "gpupolicies.yaml").read_text("utf-8"))
    listed = [version for version in document["spec"]["versions"] if version["name"] in (versions or VERSIONS)]
    document["spec"]["versions"] = [{**version, "storage": version["name"] == storage} for version in listed]
    return document


SPEC: Object = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def apply(plane: ControlPlane, document: Object, *words: str) -> KubectlResult:
    """Run kubectl apply on one object."""
    return plane.kubectl("apply", *words, "-f", "-", stdin=json.dumps(document))


def install(plane: ControlPlane, document: Object) -> None:
    """Apply a definition, and wait until each of its versions is served, and no other."""
    result = apply(plane, document)
    assert result.code == 0, result.err
    wanted = {version["name"] for version in document["spec"]["versions"]}

    def served() -> bool:
        answer = plane.api.client.get("/apis/gpu-usher.io")
        lists = [plane.api.client.get(collection(version)).is_success for version in sorted(wanted)]
        return all(lists) and {entry["version"] for entry in answer.json().get("versions", ())} == wanted

    eventually("its versions are served", served)
    assert plane.kubectl("api-resources").code == 0  # renews the versions that kubectl remembers


@contextmanager
def installed(plane: ControlPlane, document: Object) -> Iterator[None]:
    """Apply another definition for as long as the block lasts."""
    install(plane, document)
    try:
        yield
    finally:
        install(plane, definition())


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """One process that writes conditions, ready before GPUPolicy is installed, which it follows from then on."""
    events = [COMPONENTS / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake", "last-good")]
    apply_files(plane, *events, COMPONENTS / "crd" / "rbac.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_USHER_EVENTS", "true")
        running = Service(plane, kubeconfig=str(plane.kubeconfig("admin")))
        try:
            running.wait_ready()
            assert "gpupolicies" not in running.health()["caches"]
            install(plane, definition())
            eventually("they are followed", lambda: running.health()["caches"].get("gpupolicies", {}).get("synced"))
            yield running
        finally:
            running.process.stop()


@pytest.fixture(autouse=True)
def _no_policies_left(plane: ControlPlane, service: Service) -> Iterator[None]:
    yield
    assert service.process.running
    assert plane.kubectl("delete", "gpupolicies", "--all").code == 0


@pytest.fixture
def guarded(plane: ControlPlane, service: Service) -> Iterator[Service]:
    """The service, asked by the API server about each edit."""
    assert plane.kubectl("apply", "-k", str(DEPLOY.parent / "policies")).code == 0
    install_all_webhooks(plane, service)
    yield service
    remove_all_webhooks(plane)


def collection(version: str) -> str:
    return f"/apis/gpu-usher.io/{version}/gpupolicies"


def gpu_policy(name: str, version: str, **spec: Any) -> Object:
    """Write a GPUPolicy."""
    head = {"apiVersion": f"gpu-usher.io/{version}", "kind": "GPUPolicy"}
    return {**head, "metadata": {"name": name}, "spec": spec}


def raw(plane: ControlPlane, name: str, version: str) -> bytes:
    """Return the bytes that the API server writes of an object after the version in which it was asked for."""
    body = plane.api.client.get(f"{collection(version)}/{name}").raise_for_status().content
    head = f'{{"apiVersion":"gpu-usher.io/{version}",'.encode()
    assert body.startswith(head)
    return body.removeprefix(head)


def both(plane: ControlPlane, name: str) -> bytes:
    """Return the bytes of an object, the same in both versions; read again if it was written meanwhile."""
    while True:
        alpha, beta, again = (raw(plane, name, version) for version in (ALPHA, BETA, ALPHA))
        if alpha == again:
            assert alpha == beta
            return alpha


UNWRITTEN = ("managedFields", "resourceVersion")


def written(body: bytes) -> str:
    """Return the text of what a user writes; the service may write the status at any time."""
    document = json.loads(b"{" + body)
    kept = {key: value for key, value in document["metadata"].items() if key not in UNWRITTEN}
    return json.dumps([document["spec"], kept])


def contains(stored: Any, written: Any) -> bool:
    """Tell whether all that was written is stored; the API server adds defaults."""
    if isinstance(written, dict):
        return all(key in stored and contains(stored[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(stored) == len(written) and all(map(contains, stored, written))
    return bool(stored == written) and type(stored) is type(written)


def values(schema: Object) -> st.SearchStrategy[Any]:
    """Draw values of a structural schema."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object" and "properties" in schema:
        members = {name: values(member) for name, member in schema["properties"].items()}
        needed = set(schema.get("required", ()))
        optional = {name: member for name, member in members.items() if name not in needed}
        return st.fixed_dictionaries({name: members[name] for name in sorted(needed)}, optional=optional)
    if kind == "object":
        return st.dictionaries(st.text(min_size=1, max_size=8), values(schema["additionalProperties"]), max_size=2)
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=min(3, schema.get("maxItems", 3)))
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    return {
        "string": st.text(min_size=schema.get("minLength", 0), max_size=12),
        "integer": st.integers(schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)),
        "number": st.sampled_from([schema.get("minimum", 0), 0.25, schema.get("maximum", 1)]),
        "boolean": st.booleans(),
    }[kind]


def test_get_shows_what_a_policy_is_for(plane: ControlPlane) -> None:
    """F74: the columns show priority and action also where the policy leaves them out."""
    apply(plane, gpu_policy("shown", ALPHA, description="for the reader"))
    eventually("its condition is written", lambda: columns(plane)["shown"] == ["True", "InForce"])

    header, row = plane.kubectl("get", "gpol", "shown").out.splitlines()

    assert header.split() == ["NAME", "PRIORITY", "ACTION", "ACCEPTED", "REASON", "DESCRIPTION", "AGE"]
    assert row.split()[:-1] == ["shown", "0", "Enforce", "True", "InForce", "for", "the", "reader"]


def test_shipped_policies_are_accepted_as_they_are(plane: ControlPlane) -> None:
    """F74: `kubectl apply -f policies/` accepts them."""
    result = plane.kubectl("apply", "--dry-run=server", "-f", str(ROOT / "policies"))

    assert result.code == 0, result.err
    assert "gpupolicy.gpu-usher.io/training created" in result.out


@settings(max_examples=60, deadline=None)
@given(spec=values(SPEC))
def test_any_policy_is_the_same_in_both_versions(plane: ControlPlane, spec: Object) -> None:
    """F131: 60 drawn ones; written in one version, read and written back in the other."""
    plane.api.create(collection(ALPHA), gpu_policy("drawn", ALPHA, **spec))
    try:
        before = written(both(plane, "drawn"))
        conflict = True  # while the service writes the status
        while conflict:
            as_beta = plane.api.get(f"{collection(BETA)}/drawn")
            assert contains(as_beta["spec"], spec)
            answer = plane.api.client.put(f"{collection(BETA)}/drawn", json=as_beta)
            conflict = answer.status_code == 409
        answer.raise_for_status()

        assert written(both(plane, "drawn")) == before
    finally:
        plane.api.delete(f"{collection(ALPHA)}/drawn")


def test_one_manager_may_apply_both_versions_on_the_server_side(plane: ControlPlane) -> None:
    """F131: it owns its fields once, and what it leaves out in the other version goes."""
    words = ("--server-side", "--field-manager=team")
    spec = {"priority": 5, "description": "of the team", "admission": {"maxGPUsPerPod": 2}}
    first = apply(plane, gpu_policy("shared", ALPHA, **spec), *words)
    same = apply(plane, gpu_policy("shared", BETA, **spec), *words)
    stored = plane.api.get(f"{collection(ALPHA)}/shared")
    other = apply(plane, gpu_policy("shared", ALPHA, priority=6), "--server-side", "--field-manager=other")

    del spec["description"]
    fewer = apply(plane, gpu_policy("shared", BETA, **spec), *words)

    now = plane.api.get(f"{collection(ALPHA)}/shared")
    assert [answer.code for answer in (first, same, fewer)] == [0, 0, 0]
    assert stored["metadata"]["generation"] == 1
    assert (other.code, 'conflict with "team"' in other.err) == (1, True)
    assert (contains(now["spec"], spec), "description" in now["spec"]) == (True, False)
    owners = [entry for entry in now["metadata"]["managedFields"] if entry["manager"] == "team"]
    assert [entry["apiVersion"] for entry in owners] == [f"gpu-usher.io/{BETA}"]


MISTAKES: dict[str, tuple[Object, str]] = {
    "field": ({"admission": {"maxGPUPerPod": 2}}, 'unknown field "spec.admission.maxGPUPerPod"'),
    "word": ({"action": "Shout"}, 'spec.action: Unsupported value: "Shout"'),
    "bound": ({"priority": -1}, "spec.priority: Invalid value: -1"),
    "type": ({"placement": {"gpuMemory": 40}}, "spec.placement.gpuMemory: Invalid value"),
    "missing": ({"placement": {"scores": [{"weight": 5}]}}, "spec.placement.scores[0].name: Required value"),
    "product": ({"placement": {"products": {"allow": ["H10O"]}}}, "unknown product 'H10O', did you mean H100?"),
    "quantity": ({"placement": {"gpuMemory": "much"}}, "spec.placement.gpuMemory"),
}
"""Mistakes, and words of the refusal; the last two only the webhook finds."""


def test_each_version_is_checked_by_the_same_rules_and_by_the_webhook(plane: ControlPlane, guarded: Service) -> None:
    """F75, F131: the webhook's rule names v1alpha1; matchPolicy Equivalent brings it reviews of both."""
    for spec, words in MISTAKES.values():
        refusals = [apply(plane, gpu_policy("mistaken", version, **spec), "--dry-run=server") for version in VERSIONS]

        assert [refusal.code for refusal in refusals] == [1, 1]
        assert all(words in refusal.err for refusal in refusals), [refusal.err for refusal in refusals]
        first, second = (refusal.err.replace(version, "") for refusal, version in zip(refusals, VERSIONS, strict=True))
        assert first == second
    assert guarded.health()["policies"]["error"] is None


def set_in_force(service: Service) -> str:
    """Return the hash of the policies in force."""
    digest: str = service.health()["policies"]["hash"]
    return digest


def checks(plane: ControlPlane) -> dict[str, Object]:
    """Run the doctor; its findings about the definition, by their checks."""
    findings = json.loads(doctor(plane, user="admin").output)
    return {finding["check"]: finding for finding in findings if finding["check"].startswith("Policy")}


REFUSAL = "request to convert CR to an invalid group/version"
(CLEAR,) = re.findall(r"`(kubectl patch [^`]*)`", PAGE.read_text("utf-8"))
"""What the page says about server-side apply after a rollback."""


def test_rollback_of_the_definition_loses_no_policy(plane: ControlPlane, service: Service) -> None:
    """F131: objects that were applied in the newer version stay in force, and can be edited in the older.

    Server-side apply fails where managedFields name the newer version, until they are cleared as the page says
    (Kubernetes apiextensions-apiserver pkg/apiserver/conversion/converter.go).
    """
    team = ("--server-side", "--field-manager=team")
    assert apply(plane, gpu_policy("client", BETA, priority=60, description="c")).code == 0
    assert apply(plane, gpu_policy("server", BETA, priority=61, description="s"), *team).code == 0
    accepted = {"client": ["True", "InForce"], "server": ["True", "InForce"]}
    eventually("both are in force", lambda: columns(plane) == accepted)
    before = {name: written(raw(plane, name, ALPHA)) for name in accepted}
    digest = set_in_force(service)

    with installed(plane, definition(ALPHA)):
        assert {name: written(raw(plane, name, ALPHA)) for name in accepted} == before
        service.process.stop()
        service.restart()
        eventually("the same set is in force", lambda: set_in_force(service) == digest)
        refused = apply(plane, gpu_policy("server", ALPHA, priority=63), *team)
        cleared = shell(plane, CLEAR.replace("NAME", "server"))
        assert cleared.returncode == 0, cleared.stderr
        edits = [
            apply(plane, gpu_policy("client", ALPHA, priority=62)),
            apply(plane, gpu_policy("server", ALPHA, priority=63, description="s"), *team, "--force-conflicts"),
            apply(plane, gpu_policy("server", ALPHA, priority=63, description="s"), *team),
        ]
        eventually("the edits are in force", lambda: columns(plane) == accepted and set_in_force(service) != digest)

    assert (refused.code, REFUSAL in refused.err) == (1, True), refused.err
    assert [edit.code for edit in edits] == [0, 0, 0], [edit.err for edit in edits]
    specs = [plane.api.get(f"{collection(BETA)}/{name}")["spec"] for name in accepted]
    assert specs == [
        {"priority": 62, "action": "Enforce"},
        {"priority": 63, "action": "Enforce", "description": "s"},
    ]


def shell(plane: ControlPlane, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which kubectl is the control plane's."""
    folder = plane.folder / "path"
    folder.mkdir(exist_ok=True)
    words = " ".join(f"'{word}'" for word in plane.binaries.command("kubectl"))
    (folder / "kubectl").write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8")
    (folder / "kubectl").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "KUBECONFIG": str(plane.kubeconfig("admin"))
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


COMMANDS = [line.removeprefix("$ ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("$ ")]
"""The commands of the page, which are run as they are written there."""
STRICT = "set -eo pipefail\n"


def stored_versions(plane: ControlPlane) -> list[str]:
    versions: list[str] = plane.api.get(CRD)["status"]["storedVersions"]
    return versions


def stored_as(plane: ControlPlane, name: str) -> str:
    """Return the version that heads an object in etcd."""
    document = json.loads(plane.stored(f"/registry/gpu-usher.io/gpupolicies/{name}"))
    return str(document["apiVersion"]).removeprefix("gpu-usher.io/")


def test_stored_objects_are_migrated_by_the_commands_of_the_page(plane: ControlPlane) -> None:
    """F131, F87: also twice, and back; the API server refuses a definition without a version that may be stored."""
    names = ("one", "two")
    for name, version in zip(names, VERSIONS, strict=True):
        assert apply(plane, gpu_policy(name, version, priority=60)).code == 0
    eventually("their conditions are written", lambda: len(columns(plane)) == 2 and "" not in columns(plane)["two"])
    before = {name: raw(plane, name, ALPHA) for name in names}
    assert [stored_as(plane, name) for name in names] == [ALPHA, ALPHA]
    assert checks(plane) == {}

    with installed(plane, definition(storage=BETA)):
        assert stored_versions(plane) == [ALPHA, BETA]
        assert list(checks(plane)) == ["PolicyStoredVersion"]
        without = apply(plane, definition(BETA, storage=BETA))
        assert without.code == 1
        assert f'status.storedVersions[0]: Invalid value: "{ALPHA}"' in without.err + without.out

        for _ in range(2):
            done = shell(plane, STRICT + "\n".join(COMMANDS))
            assert done.returncode == 0, done.stderr
            assert [stored_as(plane, name) for name in names] == [BETA, BETA]
            assert stored_versions(plane) == [BETA]
        assert checks(plane) == {}
        assert [json.loads(b"{" + raw(plane, name, ALPHA))["spec"] for name in names] == [
            json.loads(b"{" + before[name])["spec"] for name in names
        ]
        refused = apply(plane, definition(ALPHA))
        assert refused.code == 1
        assert f'status.storedVersions[0]: Invalid value: "{BETA}"' in refused.err + refused.out

    assert stored_versions(plane) == [BETA, ALPHA]
    done = shell(plane, STRICT + checks(plane)["PolicyStoredVersion"]["remedy"])
    assert done.returncode == 0, done.stderr
    assert [stored_as(plane, name) for name in names] == [ALPHA, ALPHA]
    assert (stored_versions(plane), checks(plane)) == ([ALPHA], {})
    with installed(plane, definition(ALPHA)):
        assert len(columns(plane)) == 2

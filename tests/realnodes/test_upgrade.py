# SPDX-License-Identifier: Apache-2.0
"""The former release on real nodes is upgraded to this tree and rolled back, while pods run and policies are edited."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests import former_release
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, create_pod, decision, eventually, read_pod, wait_for_node
from tests.realnodes import former_image
from tests.realnodes.admission_load import Admissions, admissions
from tests.realnodes.claim_stage import CONFIG_MAPS
from tests.realnodes.cluster import Cluster, state_folder
from tests.realnodes.installed_results import UPGRADE_FILE, UPGRADE_HEAD, kept_results
from tests.realnodes.printed_install import image
from tests.realnodes.seen_devices import container_pod, delete_pod, wait_for_phase
from tests.realnodes.upgrade import (
    CAPS,
    Stage,
    UpgradedInstallation,
    events_on,
    mount_policy,
    read_stage,
    store_policies,
    wait_for_policies,
)
from tests.realnodes.upgrade_load import NOWHERE, POLICIES, Activity, activity

LAST_GOOD = f"{CONFIG_MAPS}/gpu-usher-policies-last-good"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-usher/leases"
GPU = "nvidia.com/gpu"
NEWER: Object = {
    "apiVersion": "gpu-usher.io/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "newer"},
    "spec": {
        "action": "Enforce",
        "priority": 0,
        "match": {"podSelector": {"matchLabels": {"nobody": "has-it"}}},
        "placement": {"namespaceLimits": [{"products": ["H100"], "gpus": 3}]},
    },
}
"""A policy with a field that the former release lacks."""
UNREADABLE = "spec.placement.namespaceLimits: unknown field"
BETA: Object = {
    "apiVersion": "gpu-usher.io/v1beta1",
    "kind": "GPUPolicy",
    "metadata": {"name": "cap-beta"},
    "spec": {
        "action": "Enforce",
        "priority": 2000,
        "match": {"podSelector": {"matchLabels": {"cap": "beta"}}},
        "admission": {"maxGPUsPerPod": 4, "override": False},
    },
}
"""A policy in a version that the former release's definition does not serve."""
BETA_FILE: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "beta", "namespace": "gpu-usher", "labels": {"gpu-usher.io/policy": "true"}},
    "data": {"beta.yaml": policy("beta-file", NOWHERE).replace("v1alpha1", "v1beta1")},
}
NOT_SERVED = (
    'no matches for kind "GPUPolicy" in version "gpu-usher.io/v1beta1"',
    "the server could not find the requested resource (post gpupolicies.gpu-usher.io)",
)
"""The messages of kubectl: the second as long as its cache of the API server's kinds has the version."""
BETA_POLICIES = POLICIES.replace("v1alpha1", "v1beta1")


@dataclass
class Story:
    """What was seen: a Stage after each step, what was created during the two changes, and the pods that stayed."""

    installation: UpgradedInstallation
    namespace: str
    standing: list[Object]
    pending: Object
    stages: dict[str, Stage] = field(default_factory=dict)
    images: dict[str, set[str]] = field(default_factory=dict)
    streams: dict[str, Admissions] = field(default_factory=dict)
    activities: dict[str, Activity] = field(default_factory=dict)
    edits: dict[str, list[str]] = field(default_factory=dict)
    pods: dict[str, list[Object]] = field(default_factory=dict)
    events: dict[str, list[Object]] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    last_good: dict[str, dict[str, str]] = field(default_factory=dict)
    ephemeral: dict[str, str] = field(default_factory=dict)
    findings: str = ""
    newer: list[Object] = field(default_factory=list)
    as_beta: dict[str, Object] = field(default_factory=dict)
    file_events: list[Object] = field(default_factory=list)
    file: Object = field(default_factory=dict)
    under_former_definition: dict[str, Object] = field(default_factory=dict)
    refused: str = ""

    @property
    def plane(self) -> ControlPlane:
        """The control plane."""
        return self.installation.plane

    def look(self, step: str) -> None:
        """Read everything after a step."""
        self.stages[step] = read_stage(self.installation)
        self.images[step] = self.installation.images()
        self.pods[step] = [read_pod(self.plane, pod) for pod in self.standing]
        self.events[step] = events_on(self.plane, self.pending)
        self.holders[step] = self.plane.api.get(f"{LEASES}/gpu-usher-events")["spec"]["holderIdentity"]
        self.last_good[step] = self.plane.api.get(LAST_GOOD)["data"]
        self.ephemeral[step] = add_ephemeral_container(self.plane, self.standing[0])

    def add_newer_policies(self) -> None:
        """Store what the former release cannot read, and have its own lint find that."""
        self.as_beta = specs(self.plane, BETA_POLICIES)
        assert self.plane.kubectl.create(NEWER, BETA, BETA_FILE).code == 0
        for name in ("newer", "cap-beta"):
            eventually(f"{name} is accepted", partial(accepted, self.plane, name))
        self.findings = self.installation.find_unreadable()

    def take_newer_policies(self) -> None:
        """Note what the former release says of these policies, and delete those that it cannot read."""
        eventually("the former does not accept it", lambda: not accepted(self.plane, "newer"))
        eventually("it writes an Event on the file", lambda: config_map_events(self.plane, "beta"))
        self.newer = [self.plane.api.get(f"{POLICIES}/newer")]
        self.file_events = config_map_events(self.plane, "beta")
        self.file = self.plane.api.get(f"{CONFIG_MAPS}/beta")
        self.plane.api.delete(f"{POLICIES}/newer")
        self.plane.api.delete(f"{CONFIG_MAPS}/beta")
        eventually("all policies are in force", lambda: in_force_everywhere(self.installation, "edited-file"))
        kept = lambda: "namespaceLimits" not in str(self.plane.api.get(LAST_GOOD)["data"])  # noqa: E731
        eventually("the former release keeps what it reads", kept)

    def replace_definition(self) -> None:
        """Apply the former definition, and try to write a policy of the version that it lacks."""
        self.installation.apply_former_definition()
        codes = {POLICIES: 200, BETA_POLICIES: 404}
        served = lambda: {path: self.plane.api.client.get(path).status_code for path in codes} == codes  # noqa: E731
        eventually("v1alpha1 alone is served", served)
        self.under_former_definition = specs(self.plane, POLICIES)
        self.refused = self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(BETA)).err


@pytest.fixture(scope="module")
def installation(cluster: Cluster, former: Path) -> Iterator[UpgradedInstallation]:
    archive, state = former_image.find(), state_folder()
    if isinstance(archive, str):
        pytest.skip(archive)
    assert state is not None
    folder = state / "upgrade"
    folder.mkdir()
    made = UpgradedInstallation(cluster, folder, former, archive)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def story(cluster: Cluster, installation: UpgradedInstallation, former: Path) -> Iterator[Story]:
    """Install the former release, store policies, run pods, upgrade, roll back; look after each step."""
    namespace = create_namespace(cluster.plane, "team-upgrade")
    standing = [container_pod(f"stays-{n}", namespace, {GPU: 1}, schedulerName="default-scheduler") for n in range(2)]
    pending = container_pod("waits", namespace, {GPU: 9}, schedulerName="default-scheduler")
    seen = Story(installation, namespace, standing, pending)
    try:
        upgrade_and_roll_back(cluster, seen, former)
        yield seen
    finally:
        for pod in (*standing, pending):
            delete_pod(cluster, pod)
    with kept_results(UPGRADE_FILE, UPGRADE_HEAD) as results:
        for step in ("upgrade", "rollback"):
            results.add_steps(step.capitalize(), seen.streams[step].steps)
            results.add_lines(f"Users during the {step}", table(seen.activities[step]))


def upgrade_and_roll_back(cluster: Cluster, seen: Story, former: Path) -> None:
    """Play the story."""
    plane, installation = seen.plane, seen.installation
    mount_policy(plane)
    installation.install_former()
    store_policies(plane, former)
    for pod in (*seen.standing, seen.pending):
        create_pod(plane, pod)
    for pod in seen.standing:
        wait_for_node(plane, pod)
        wait_for_phase(cluster, pod)
    eventually("the former release writes why a pod waits", lambda: events_on(plane, seen.pending))
    wait_for_policies(plane)
    eventually("the former release keeps the set", lambda: "cap-mounted" in str(plane.api.get(LAST_GOOD).get("data")))

    seen.look("former")
    with under_load(seen, "upgrade", "README's install block of this tree") as stream:
        installation.upgrade()
        stream.note("every Deployment runs this tree")
        wait_for_policies(plane)
    seen.look("upgraded")
    seen.add_newer_policies()
    with under_load(seen, "rollback", "the roll back block of deploy/README") as stream:
        installation.roll_back()
        stream.note(f"every Deployment runs {former_release.TAG}")
        wait_for_policies(plane)
    seen.take_newer_policies()
    seen.look("rolled back")
    seen.replace_definition()


@contextmanager
def under_load(seen: Story, name: str, step: str) -> Iterator[Admissions]:
    """Create and edit for as long as the block lasts, noted in the story under a name; then read what is stored."""
    plane = seen.plane
    with activity(plane, seen.namespace, name) as acting, admissions(plane, seen.namespace) as stream:
        seen.streams[name], seen.activities[name] = stream, acting
        stream.go_on()
        stream.note(step)
        yield stream
        stream.go_on()
        stream.note("end")
    text = plane.api.get(f"{CONFIG_MAPS}/edited")["data"]["edited.yaml"]
    described = plane.api.get(f"{POLICIES}/edited")["spec"]["description"]
    seen.edits[name] = [described, text.partition("description: ")[2].partition(",")[0]]


def table(seen: Activity) -> str:
    """Write what users did as a table."""
    head = "| what | times | not mutated | refused |\n|---|---|---|---|\n"
    wait = f"\nThe longest time from a pod's creation until it ran: {max(seen.waits):.0f} s.\n"
    return head + "\n".join(seen.rows()) + "\n" + wait


def specs(plane: ControlPlane, path: str) -> dict[str, Object]:
    """Read the specs of all GPUPolicies in the version of a path, by name, but for the one that is edited."""
    return {
        item["metadata"]["name"]: item["spec"] for item in plane.api.items(path) if item["metadata"]["name"] != "edited"
    }


def config_map_events(plane: ControlPlane, name: str) -> list[Object]:
    """List our Events on a ConfigMap of policies."""
    events = plane.api.items("/apis/events.k8s.io/v1/namespaces/gpu-usher/events")
    return [
        event for event in events if event["regarding"]["kind"] == "ConfigMap" and event["regarding"]["name"] == name
    ]


def in_force_everywhere(installed: UpgradedInstallation, name: str) -> bool:
    """Tell whether every replica has a policy in force."""
    samples = installed.samples("admission", "gpu_usher_policy_info").values()
    return all(any(sample.labels["policy"] == name for sample in ours) for ours in samples)


def accepted(plane: ControlPlane, name: str) -> bool:
    """Tell whether gpu-usher reports in the object that it is in force."""
    conditions = plane.api.get(f"{POLICIES}/{name}").get("status", {}).get("conditions", [])
    return any(condition["type"] == "Accepted" and condition["status"] == "True" for condition in conditions)


def add_ephemeral_container(plane: ControlPlane, pod: Object) -> str:
    """Add a container to a running pod, as a dry run; admission reads its own earlier decision then. Empty: it may."""
    stored = read_pod(plane, pod)
    debugger = {
        "name": "debug",
        "image": "gpu-usher.test/shell:1",
        "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}],
    }
    stored["spec"]["ephemeralContainers"] = [debugger]
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/ephemeralcontainers"
    answer = plane.api.client.put(f"{path}?dryRun=All", json=stored)
    return "" if answer.is_success else answer.text


@pytest.mark.parametrize("step", ["upgrade", "rollback"])
def test_no_creation_fails_and_every_gpu_pod_is_mutated(story: Story, step: str) -> None:
    """HA-02, HA-03, F112: pods, workloads and edits of policies, with the failure policies as shipped."""
    assert story.streams[step].failures() == {}
    assert story.activities[step].failures() == {}
    assert all(counter.total() > 5 for counter in story.activities[step].outcomes.values())
    assert len(story.streams[step].outcomes) > 200
    assert story.edits[step] == [f"edit {story.activities[step].edit}"] * 2


def test_each_step_replaces_every_pod_of_ours(story: Story) -> None:
    """F114: the images of two releases, by two names."""
    assert story.images == {"former": {former_image.NAME}, "upgraded": {image()}, "rolled back": {former_image.NAME}}


@pytest.mark.parametrize("step", ["upgraded", "rolled back"])
def test_policies_are_stored_as_they_were_and_in_force(story: Story, step: str) -> None:
    """F131, F114: objects, ConfigMaps and a key that somebody added to the mounted one; in force in every replica."""
    before, after = story.stages["former"], story.stages[step]
    added = {"cap-beta"} if step == "rolled back" else set()

    assert {name: spec for name, spec in after.policies.items() if name not in added} == before.policies
    assert after.files["of-a-team"] == before.files["of-a-team"]
    assert after.files["gpu-usher-policies"]["mounted.yaml"] == before.files["gpu-usher-policies"]["mounted.yaml"]
    (names,) = set(before.in_force.values())
    assert {f"cap-{where}" for where in CAPS} < names
    assert set(after.in_force.values()) == {names | added}
    assert len(after.in_force) == 3
    assert after.in_force.keys().isdisjoint(before.in_force)
    for where, gpus in CAPS.items():
        assert f"at most {gpus} per pod" in after.refusals[where]


def test_policy_of_the_former_release_is_read_in_the_newer_version(story: Story) -> None:
    """F131: the same spec, for it is stored once."""
    assert {name: json.dumps(spec) for name, spec in story.as_beta.items()} == story.stages["former"].policies


def test_policy_of_the_newer_version_survives_the_rollback_and_the_former_definition(story: Story) -> None:
    """F131: it is stored as v1alpha1. Under the former definition v1beta1 is refused by a message that says so."""
    assert json.loads(story.stages["rolled back"].policies["cap-beta"]) == BETA["spec"]
    before = {name: json.loads(spec) for name, spec in story.stages["rolled back"].policies.items()}
    assert story.under_former_definition == before
    assert any(words in story.refused for words in NOT_SERVED), story.refused


def test_policy_file_of_the_newer_version_is_kept_and_reported_after_the_rollback(story: Story) -> None:
    """F131: an Event on the ConfigMap; the policies of all others stay in force."""
    assert story.file["data"] == BETA_FILE["data"]
    assert any("apiVersion: input should be 'gpu-usher.io/v1alpha1'" in event["note"] for event in story.file_events)


@pytest.mark.parametrize("step", ["upgraded", "rolled back"])
def test_state_of_the_other_release_is_used(story: Story, step: str) -> None:
    """TLS-06, F139, AUD-03: certificates stay, the Lease has a new holder, and the same Event is continued."""
    before, after = story.stages["former"], story.stages[step]

    assert after.certificates == before.certificates
    assert len(set(story.holders.values())) == len(story.holders)
    names = {event["metadata"]["name"] for event in story.events["former"]}
    assert names <= {event["metadata"]["name"] for event in story.events[step]}
    assert {event["reason"] for event in story.events[step]} == {"RequestExceedsNode"}
    assert len(story.events[step]) <= 3


@pytest.mark.parametrize("step", ["upgraded", "rolled back"])
def test_pods_of_the_other_release_run_on_and_their_decision_is_read(story: Story, step: str) -> None:
    """F1, AUD-01: the same containers, not restarted; none counts as unadmitted; a container may be added to them."""
    for before, after in zip(story.pods["former"], story.pods[step], strict=True):
        assert decision(before)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert [state["restartCount"] for state in after["status"]["containerStatuses"]] == [0]
    assert story.stages[step].slipped == 0
    assert story.stages[step].filtered > 0
    assert story.ephemeral[step] == ""


def test_nothing_of_the_other_release_is_left_behind(story: Story) -> None:
    """ADM-10: both have objects of the same names. The definition stays, and with it the version that it serves."""
    before, upgraded, after = (stage.objects for stage in story.stages.values())

    assert upgraded - before == after - before == {"APIService <none> v1beta1.gpu-usher.io"}
    assert before < after


def test_policy_with_a_newer_field_is_found_before_the_rollback_and_kept_after_it(story: Story) -> None:
    """F131: the former release's own lint names it; then it says in the object that the policy is not in force."""
    assert UNREADABLE in story.findings
    assert story.findings.count("unknown field") == 1
    (kept,) = story.newer
    assert kept["spec"] == NEWER["spec"]
    (condition,) = kept["status"]["conditions"]
    assert UNREADABLE in condition["message"]


def test_last_good_set_of_each_release_is_read_by_the_former(
    story: Story, installation: UpgradedInstallation, tmp_path: Path
) -> None:
    """F131: by the former release's own reader, which serves it if it starts with an error."""
    for step, texts in story.last_good.items():
        folder = tmp_path / step
        folder.mkdir()
        for number, text in enumerate(texts.values()):
            (folder / f"{number}.yaml").write_text(text, "utf-8")
        found = installation.run(f"gpu-usher policy lint '{folder}' || true")
        assert found.endswith("no findings\n"), found

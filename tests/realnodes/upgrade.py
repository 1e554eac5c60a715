# SPDX-License-Identifier: Apache-2.0
"""The former release on real nodes, upgraded to this tree and back, by the commands that the pages print."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.certificate_stage import data
from tests.e2e.stage import eventually, plain_pod
from tests.realnodes.claim_stage import CONFIG_MAPS
from tests.realnodes.cluster import Cluster
from tests.realnodes.former_image import NAME
from tests.realnodes.installation import CONFIGURATIONS, REGISTRATION
from tests.realnodes.printed_install import PrintedInstallation, commands, image
from tests.realnodes.upgrade_load import POLICIES, edited_objects

FORM = "deploy/overlays/production-self-signed"
CAPS = {"object": 1, "file": 2, "mounted": 3}
"""Where a policy is stored → how many GPUs it allows to pods with the label `cap` of that value."""
OPS_PORT = 8080
LINT = "gpu-usher policy lint stored"


class UpgradedInstallation(PrintedInstallation):
    """The former release by the install block of its own README, then this tree's by ours, then the former again.

    `former` is the folder with the former release's files. The command `gpu-usher` is that of the former release.
    """

    def __init__(self, cluster: Cluster, folder: Path, former: Path, archive: Path) -> None:
        super().__init__(cluster, folder, FORM)
        self._former = former
        for node in cluster.nodes.values():
            node.import_image(archive)
        self.add_program("gpu-usher", f'PYTHONPATH={former} exec {sys.executable} -m app.cli.main "$@"')
        self._page = (folder / "deploy" / "README.md").resolve()

    def install_former(self) -> None:
        """Run the former README's install block in its own tree, and keep its manifests where ours will be."""
        block = commands(self._former / "README.md", "OVERLAY=")
        assert FORM in block.splitlines()[0]
        named = re.sub(r"IMAGE=\S+", f"IMAGE={NAME}", block)
        self.run(f"cd {self._former}\n{named}\ncp gpu-usher.yaml {self._folder}")
        self.wait_until_admitting()

    def upgrade(self) -> None:
        """Keep the former manifests as deploy/README says, and run README's install block."""
        (keep,) = re.findall(r"`(mv [^`]+)`", self._page.read_text("utf-8"))
        self.run(keep)
        self.install()

    def find_unreadable(self) -> str:
        """Run the block of deploy/README by which the former release reads the stored policies; return its findings."""
        block = commands(self._page, "mkdir stored")
        assert LINT in block
        return self.run(f"rm -rf stored\n{block.replace(LINT, LINT + ' || true')}")

    def roll_back(self) -> None:
        """Run the block of deploy/README."""
        self.run(commands(self._page, "kubectl apply --server-side --force-conflicts -f former.yaml"))
        self.wait_until_admitting()

    def apply_former_definition(self) -> None:
        """Apply the former release's definition of GPUPolicy, which deploy/README leaves out."""
        self.run("kubectl apply --server-side --force-conflicts -f former.yaml -l app.kubernetes.io/component=policies")

    def samples(self, component: str, name: str) -> Mapping[str, list[Sample]]:
        """Return the samples of a metric by pod, of the pods of a component."""
        found = {}
        for pod in self.pods():
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component:
                url = f"http://{pod['status']['podIP']}:{OPS_PORT}/metrics"
                families = text_string_to_metric_families(httpx.get(url, trust_env=False, timeout=20).text)
                samples = [sample for family in families for sample in family.samples if sample.name == name]
                found[pod["metadata"]["name"]] = samples
        return found

    def images(self) -> set[str]:
        """Return the images of our own that the pods run."""
        containers = [
            c for pod in self.pods() for c in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        ]
        return {container["image"] for container in containers} & {NAME, image()}


@dataclass(frozen=True, slots=True)
class Stage:
    """What is stored and in force after a step.

    `policies` are the specs of the GPUPolicies as JSON, `files` the data of the ConfigMaps of policies, both by name,
    without those that are edited all the time. `in_force` are the names of policies by replica. `refusals` are the
    answers to pods that request one GPU more than CAPS allow. `objects` are all objects of ours but pods and what
    belongs to their rollout. `certificates` are the served certificate and the CAs, with those of each webhook.
    """

    policies: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]
    in_force: Mapping[str, frozenset[str]]
    refusals: Mapping[str, str]
    objects: frozenset[str]
    certificates: tuple[bytes, bytes, frozenset[str]]
    slipped: float
    filtered: float


def mount_policy(plane: ControlPlane) -> None:
    """Put a policy of one's own into the ConfigMap that is mounted, before an installation adds the shipped ones."""
    metadata = {"name": "gpu-usher-policies", "namespace": "gpu-usher"}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"mounted.yaml": _cap("mounted")},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-usher"}}
    result = plane.kubectl.create(namespace, config_map)
    assert result.code == 0, result.err


def store_policies(plane: ControlPlane, former: Path) -> None:
    """Store policies as objects, some of them as the shipped ones, and in a ConfigMap."""
    documents = [
        doc
        for path in sorted((former / "policies").glob("*.yaml"))
        for doc in yaml.safe_load_all(path.read_text("utf-8"))
    ]
    for number, document in enumerate(documents):
        document["metadata"]["name"] = f"stored-{document['metadata']['name']}"
        document["metadata"]["annotations"] = {"team.example/note": "ours: ä"}
        document["spec"] |= {"priority": 1000 + number, "match": {"podSelector": {"matchLabels": {"nobody": "has-it"}}}}
    documents += [yaml.safe_load(_cap("object")), *edited_objects(0)]
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "of-a-team", "namespace": "gpu-usher", "labels": {"gpu-usher.io/policy": "true"}},
        "data": {"file.yaml": f"# A comment.\n{_cap('file')}"},
    }
    result = plane.kubectl.create(*documents, config_map)
    assert result.code == 0, result.err


def _cap(where: str) -> str:
    match = f"match: {{podSelector: {{matchLabels: {{cap: {where}}}}}}}"
    return policy(f"cap-{where}", f"priority: 2000, {match}, admission: {{maxGPUsPerPod: {CAPS[where]}}}")


def refusal(plane: ControlPlane, where: str) -> str:
    """Create a pod with one GPU too many as a dry run, and return the message; empty if it is admitted."""
    pod = plain_pod("default", {"nvidia.com/gpu": CAPS[where] + 1}, labels={"cap": where})
    answer = plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", pod)
    return "" if answer.is_success else str(answer.json()["message"])


def wait_for_policies(plane: ControlPlane) -> None:
    """Wait until every policy is in force."""
    eventually("all policies rule", lambda: all(refusal(plane, where) for where in CAPS))


def read_stage(installed: UpgradedInstallation) -> Stage:
    """Read what is stored and in force now."""
    plane = installed.plane
    policies = {item["metadata"]["name"]: item["spec"] for item in plane.api.items(POLICIES)}
    maps = {item["metadata"]["name"]: item.get("data", {}) for item in plane.api.items(CONFIG_MAPS)}
    webhooks = [w for kind in CONFIGURATIONS for c in plane.api.items(f"{REGISTRATION}/{kind}") for w in c["webhooks"]]
    replicas = installed.samples("admission", "gpu_usher_policy_info")
    slipped = [*installed.samples("admission", "gpu_usher_slipped_pods").values()]
    filtered = [*installed.samples("scheduler", "gpu_usher_requests_total").values()]
    return Stage(
        {name: json.dumps(spec) for name, spec in policies.items() if name != "edited"},
        {name: maps[name] for name in ("gpu-usher-policies", "of-a-team")},
        {pod: frozenset(s.labels["policy"] for s in samples if s.value) for pod, samples in replicas.items()},
        {where: refusal(plane, where) for where in CAPS},
        frozenset(line for line in installed.objects() if _is_kept(line)),
        (
            data(plane, "tls", "tls.crt"),
            data(plane, "ca", "ca.crt"),
            frozenset(w["clientConfig"].get("caBundle") for w in webhooks),
        ),
        sum(sample.value for samples in slipped for sample in samples),
        sum(sample.value for samples in filtered for sample in samples if sample.labels["verb"] == "filter"),
    )


def _is_kept(line: str) -> bool:
    """Tell whether an object keeps its name in a rollout."""
    return not line.startswith(
        ("Pod ", "ReplicaSet ", "Endpoints ", "EndpointSlice ", "PodMetrics ", "ControllerRevision ")
    )


def events_on(plane: ControlPlane, pod: Object) -> list[Object]:
    """List our Events on a pod."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    ours = [event for event in events if event["reportingController"] == "gpu-usher"]
    return [event for event in ours if event["regarding"]["name"] == name]

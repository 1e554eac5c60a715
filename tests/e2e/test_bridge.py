# SPDX-License-Identifier: Apache-2.0
"""Pods of published manifests become claims at admission, and the real kube-scheduler gives them the same GPUs (S13).

The GPUs are there twice: on nodes with a device plugin and the labels of GPU Feature Discovery, and on nodes without
labels whose ResourceSlices have the same makes. What filter says of a pod as it was, on the former, is compared with
what becomes of the converted pod on the latter.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.admission.claim_conversion import Conversion, convert
from app.cli.verbs import app
from app.kube.pods import read_pod as read_pod_facts
from app.nodes.reading import read_node
from app.placement.engine import judge
from tests.builders import demand, knowledge, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process
from tests.corpus.manifests import own_collection
from tests.dra.makes import DEVICES, MAKES, WISHES, device, device_class, slice_of
from tests.e2e.offers import dra_path
from tests.e2e.settling import QUICK
from tests.e2e.stage import (
    DEPLOY,
    OURS,
    Service,
    create_namespace,
    eventually,
    gpu_pod,
    install_webhooks,
    own_policies,
    read_pod,
    refusal,
    scheduler_configuration,
    serving,
)

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
PODS = 12
MOST_GPUS = 4
"""GPUs of one pod at most, so that all pods find devices on each node."""
NAMESPACE = "bridge"
CONVERT = f"match: {{namespaceSelector: {{matchLabels: {{{NAMESPACE}: 'yes'}}}}}}, admission: {{convertToClaims: true}}"
SECONDS = 240


@dataclass(frozen=True)
class Published:
    """A pod of the corpus with what matters for GPUs; `accepted` are the makes whose labelled node filter accepts."""

    where: str
    pod: Object
    accepted: frozenset[str]


def labelled_nodes() -> dict[str, Object]:
    """Write a node with a device plugin for each make, and one that has MIG slices."""
    nodes = {make: _labelled(f"plugin-{make}", make, {GPU: DEVICES}) for make in MAKES}
    mig = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.capable": "true"}
    return {**nodes, "mig": _labelled("plugin-mig", "h100", {SLICE: DEVICES}, **mig)}


def _labelled(name: str, make: str, offers: dict[str, int], **labels: str) -> Object:
    product, driver, _, capability, memory = MAKES[make]
    major, minor, _ = capability.split(".")
    facts = {f"nvidia.com/gpu.compute.{part}": text for part, text in (("major", major), ("minor", minor))}
    count = {"nvidia.com/gpu.count": str(DEVICES)}
    size = {"nvidia.com/gpu.memory": memory.removesuffix("Mi")} if memory else {}
    return node_object(name, product.replace(" ", "-"), driver, offers, labels={**facts, **count, **size, **labels})


def slices() -> list[Object]:
    """Write the slices of the nodes without labels: the same makes, and slices of an H100."""
    whole = [slice_of(f"claims-{make}", [device(n, "gpu", make) for n in range(DEVICES)]) for make in MAKES]
    return [*whole, slice_of("claims-mig", [device(n, "mig", "h100", profile="1g.10gb") for n in range(DEVICES)])]


def published() -> list[Published]:
    """Take pods of the corpus that have an equivalent; of pods with equal needs the later ones get a wish each."""
    rows = (zip(WISHES, words, strict=False) for words in zip_longest(*WISHES.values()))
    wishes = ({key: word} for key, word in chain.from_iterable(rows) if word)
    nodes = {make: read_node(document, knowledge()) for make, document in labelled_nodes().items()}
    chosen: list[Published] = []
    names: set[str] = set()
    for manifest in own_collection().gpu_pods:
        pod = bare(manifest.pod)
        if (converted := conversion(pod)) is None:
            continue
        if converted.name in names:
            if (wish := next(wishes, None)) is None:
                continue
            pod = {**pod, "metadata": {"annotations": {f"gpu-usher.io/{key}": word for key, word in wish.items()}}}
            converted = conversion(pod)
        if converted is not None and len(chosen) < PODS:
            names.add(converted.name)
            accepted = (make for make, node in nodes.items() if judge(demand(pod), node, recount=True) is None)
            chosen.append(Published(manifest.where, pod, frozenset(accepted)))
    return chosen


def conversion(pod: Object) -> Conversion | None:
    """Convert a pod; None where it has no equivalent, or too many GPUs for this test."""
    pod_demand = demand(pod)
    if not pod_demand.resources or sum(count for _, count in pod_demand.resources) > MOST_GPUS:
        return None
    outcome = convert(read_pod_facts(pod, NAMESPACE), pod_demand, knowledge())
    return outcome if isinstance(outcome, Conversion) else None


def bare(pod: Object) -> Object:
    """Leave of a pod what its GPUs depend on: images, variables, GPU amounts and the annotations that we read."""
    spec = {name: [_container(one) for one in pod["spec"][name]] for name in ("initContainers", "containers")
            if pod["spec"].get(name)}  # fmt: skip
    annotations = pod["metadata"].get("annotations") or {}
    ours = {key: text for key, text in annotations.items() if key.startswith("gpu-usher.io/")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": ours}, "spec": spec}


def _container(container: Object) -> Object:
    sides = (container.get("resources") or {}).items()
    gpus = {side: {name: amount for name, amount in amounts.items() if "nvidia.com/" in name} for side, amounts in sides
            if side in ("requests", "limits")}  # fmt: skip
    own: Object = {key: container[key] for key in ("name", "image", "env", "restartPolicy") if key in container}
    return {**own, "resources": gpus}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The nodes twice, the service with its webhooks and a policy that converts, kube-scheduler with the extender."""
    convert = policy("convert", f"priority: 9, {CONVERT}")
    folder = own_policies(tmp_path_factory.mktemp("bridge"), {"convert": convert})
    unlabelled = [node_object(one["metadata"]["name"], None, None, {}) for one in slices()]
    add_nodes(plane.api, chain(labelled_nodes().values(), unlabelled))
    plane.api.create_all(f"{dra_path(plane)}/resourceslices", slices())
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")):
        plane.api.create(f"{dra_path(plane)}/deviceclasses", device_class(name, kind))
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        configuration = scheduler_configuration(running)
        configuration["profiles"][0]["schedulerName"] = OURS
        plane.start_scheduler({**configuration, **QUICK}, OURS)
        create_namespace(plane, NAMESPACE, **{NAMESPACE: "yes"})
        yield running


def apply_templates(plane: ControlPlane, pods: list[Published], folder: Path) -> list[Object]:
    """Write the templates for the pods by the command, and apply what it writes."""
    classes = plane.api.items(f"{dra_path(plane)}/deviceclasses")
    version = dra_path(plane).removeprefix("/apis/")
    listed = [{"apiVersion": version, "kind": "DeviceClass", **one} for one in classes]
    (folder / "classes.json").write_text(json.dumps({"kind": "List", "items": listed}), "utf-8")
    documents = [{**one.pod, "metadata": {**one.pod["metadata"], "name": f"p{n}"}} for n, one in enumerate(pods)]
    (folder / "pods.yaml").write_text(yaml.safe_dump_all(documents), "utf-8")
    words = ["-f", str(folder / "pods.yaml"), "-n", NAMESPACE, "--snapshot", str(folder / "classes.json")]
    done = CliRunner().invoke(app, ["plan", "claim-templates", *words])
    assert done.exit_code == 0, done.output
    applied = plane.kubectl("apply", "-f", "-", stdin=done.stdout)
    assert applied.code == 0, applied.err
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def create_converted(plane: ControlPlane, one: Published, name: str, make: str) -> Object:
    """Create a pod for the node without labels that has one make, and return it as admission left it."""
    metadata = {**one.pod["metadata"], "name": name, "namespace": NAMESPACE}
    spec = {**one.pod["spec"], "schedulerName": OURS, "nodeSelector": {"kubernetes.io/hostname": f"claims-{make}"}}
    return plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {**one.pod, "metadata": metadata, "spec": spec})


def is_converted(pod: Object) -> bool:
    """Tell whether a pod claims its GPUs, and requests none as resources."""
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    amounts = [side for one in containers for key, side in one["resources"].items() if key != "claims"]
    claims = [entry["name"] for entry in pod["spec"].get("resourceClaims", ())]
    return claims == ["gpu-usher"] and not any("nvidia.com/" in name for side in amounts for name in side)


def outcomes(plane: ControlPlane, pods: dict[Any, Object]) -> dict[Any, str]:
    """Wait until each pod is bound or refused, and return the refusals, "" for a pod that is bound."""
    refusals: dict[Any, str] = {}

    def decided() -> bool:
        for key, document in pods.items():
            now = read_pod(plane, document) if key not in refusals else {}
            if now and (now["spec"].get("nodeName") or "nodes are available" in refusal(now)):
                refusals[key] = "" if now["spec"].get("nodeName") else refusal(now)
        return len(refusals) == len(pods)

    eventually("every pod is bound or refused", decided, SECONDS)
    return refusals


def test_converted_pods_get_gpus_on_just_the_nodes_that_filter_accepted_before(
    plane: ControlPlane, service: Service, tmp_path: Path
) -> None:
    """S13, F135: twelve pods of the corpus, each on every make of GPU."""
    pods = published()
    templates = apply_templates(plane, pods, tmp_path)
    assert service.process.running
    eventually("admission knows the templates", lambda: all(is_converted(plane.api.create(
        f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", {**one.pod, "metadata": {
            **one.pod["metadata"], "name": "try", "namespace": NAMESPACE}})) for one in pods))  # fmt: skip

    created = {
        (number, make): create_converted(plane, one, f"p{number}-{make}", make)
        for number, one in enumerate(pods)
        for make in (*MAKES, "mig")
    }
    refusals = outcomes(plane, created)

    assert all(map(is_converted, created.values()))
    got = {number: frozenset(make for n, make in created if n == number and not refusals[n, make])
           for number in range(len(pods))}  # fmt: skip
    apart = [(one.where, sorted(one.accepted), sorted(got[n])) for n, one in enumerate(pods) if got[n] != one.accepted]
    bound = sum(map(len, got.values()))
    print(f"{len(pods)} pods, {len(templates)} templates, {len(created)} converted, {bound} bound")
    assert apart == []
    assert len(pods) == PODS
    assert 0.2 < bound / len(created) < 0.9


def test_keeper_makes_the_template_in_the_namespace_that_lets_it_and_the_next_pod_claims(
    plane: ControlPlane, service: Service
) -> None:
    """S13: with the rights of deploy/components/claim-templates, and no others."""
    result = plane.kubectl("apply", "-f", str(DEPLOY / "components" / "claim-templates" / "rbac.yaml"))
    assert result.code == 0, result.err
    create_namespace(plane, "closed", **{NAMESPACE: "yes"})
    account, role = "gpu-usher:gpu-usher-claim-templates", "--clusterrole=gpu-usher-claim-templates"
    bound = plane.kubectl("-n", NAMESPACE, "create", "rolebinding", "keeper", role, f"--serviceaccount={account}")
    assert bound.code == 0, bound.err
    first = {name: create_wishing(plane, name, "first") for name in (NAMESPACE, "closed")}
    kubeconfig = plane.kubeconfig("claim-templates")
    folder = service.flags["policies"]
    command = [sys.executable, "-m", "app.cli.main", "claims-controller", "--kubeconfig", str(kubeconfig)]
    keeper = Process("keeper", [*command, "--policies", folder, "--turn-seconds", "1"], plane.folder / "keeper.log")
    try:
        path = f"{dra_path(plane)}/namespaces/{{}}/resourceclaimtemplates"
        eventually("the template is there", lambda: plane.api.items(path.format(NAMESPACE)))
        eventually("the next pod claims", lambda: is_converted(create_wishing(plane, NAMESPACE, "next?dryRun=All")))
    finally:
        keeper.stop()

    assert not any(map(is_converted, first.values()))
    assert plane.api.items(path.format("closed")) == []
    assert "template not created" in (plane.folder / "keeper.log").read_text("utf-8")


def create_wishing(plane: ControlPlane, namespace: str, name: str) -> Object:
    """Create a pod that no scheduler knows, with a need; the name may end in a query."""
    name, _, query = name.partition("?")
    document = gpu_pod(
        name, namespace, annotations={"products": "L40S"}, schedulingGates=[{"name": "example.com/held"}]
    )
    return plane.api.create(f"/api/v1/namespaces/{namespace}/pods?{query}", document)

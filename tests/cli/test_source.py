# SPDX-License-Identifier: Apache-2.0
"""Any command reads a live cluster once: its DRA objects and policies count, and absent kinds are no error."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from app.kube.api_kinds import API_KINDS, DRA
from app.values.errors import BadInput, PolicyError
from tests.builders import gpus, pod, policy
from tests.cluster.fake_apiserver import FakeApi, served, status

RUN = CliRunner()
PATHS = {name: kind.path() for name, kind in API_KINDS.items()}
LABELS = {"gpu-usher.io/policy": "true"}
WAIT_SECONDS = 60


class Cluster:
    """A fake API server in a thread of its own, with a kubeconfig for it. Kinds without objects answer 404."""

    def __init__(
        self, folder: Path, objects: list[dict[str, Any]], forbidden: tuple[str, ...] = (), dra: str = "v1"
    ) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._apis: dict[str, FakeApi] = {"/version": FakeApi()}
        for kind in API_KINDS:
            path = API_KINDS[kind].path(version=dra) if kind in DRA else PATHS[kind]
            documents = [document for document in objects if document["kind"] == kind]
            if documents or kind in forbidden or path.startswith("/api/v1"):
                self._apis[path] = api = FakeApi()
                for number, document in enumerate(documents):
                    api.objects[f"{number}"] = {key: value for key, value in document.items() if key != "kind"}
            if kind in forbidden:
                self._apis[path].faults.extend([status(403)] * 9)
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = Event(), asyncio.Event()

    def __enter__(self) -> "Cluster":
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS)
        return self

    async def _serve(self) -> None:
        async with served(self._apis):
            url = next(iter(self._apis.values())).url
            document = {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
            self.kubeconfig.write_text(yaml.safe_dump(document), "utf-8")
            self._ready.set()
            await self._stop.wait()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def run(self, *words: str) -> Result:
        return RUN.invoke(app, [*words, "--kubeconfig", str(self.kubeconfig)])


def config_map(name: str, labels: dict[str, str], **texts: str) -> dict[str, Any]:
    data = {key.replace("_", ".") + ".yaml": text for key, text in texts.items()}
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "gpu-usher", "labels": labels}, "data": data}


MAPPED = config_map("more", LABELS, a=policy("in-a-map", "priority: 5, placement: {gpuMemory: 8Gi}"))
OBJECT = {
    "kind": "GPUPolicy",
    "metadata": {"name": "only-a10", "uid": "u", "resourceVersion": "7"},
    "spec": {"priority": 7, "placement": {"products": {"allow": ["A10"]}}},
}
MOUNTED = config_map("gpu-usher-policies", {}, base=policy("mounted", "priority: 1, admission: {maxGPUsPerPod: 1}"))
OTHER = config_map("kube-root-ca.crt", {}, ca="a: [")


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod(gpus(2))), "utf-8")
    return str(tmp_path / "pod.yaml")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, [*demo_fleet(), MAPPED, OBJECT, MOUNTED, OTHER]) as fake_cluster:
        yield fake_cluster


def test_every_command_obeys_the_policies_that_the_cluster_keeps(cluster: Cluster, file: str) -> None:
    """F83, F85, F131: policies count as mounted files, as labelled ConfigMaps and as GPUPolicy objects.

    The mounted policy refuses what the shipped policies allow.
    """
    explained = json.loads(cluster.run("explain", "-f", file, "-o", "json").stdout)
    mutated = json.loads(cluster.run("mutate", "-f", file, "-o", "json").stdout)
    shipped = json.loads(cluster.run("mutate", "-f", file, "-o", "json", "--policies", str(shipped_policies())).stdout)

    assert explained["policies"] == ["only-a10", "in-a-map", "mounted"]
    assert "at most 1 per pod is allowed" in explained["admission"]["message"] + mutated["objects"][0]["message"]
    assert [answer["objects"][0]["allowed"] for answer in (mutated, shipped)] == [False, True]


@pytest.mark.parametrize(
    "words", [["explain", "-f", "POD"], ["doctor"], ["inventory"], ["mutate", "-f", "POD"]], ids=lambda words: words[0]
)
def test_command_reads_the_cluster_of_kubectl_where_no_fleet_is_named(
    cluster: Cluster, file: str, words: list[str]
) -> None:
    """F83, F85, F87, F89: KUBECONFIG is obeyed by every command that reads a cluster, and only without other fleets."""
    words = [file if word == "POD" else word for word in [*words, "-o", "json"]]
    environment = {"KUBECONFIG": str(cluster.kubeconfig)}

    named = cluster.run(*words)
    default = RUN.invoke(app, words, env=environment)
    sample = [RUN.invoke(app, [*words, "--demo-fleet", "mig"], env=env).stdout for env in ({}, environment)]

    assert json.loads(default.stdout) == json.loads(named.stdout)
    assert sample[0] == sample[1] != default.stdout


def test_command_without_any_fleet_names_the_flags(file: str, tmp_path: Path) -> None:
    """F83: KUBECONFIG leads to no file here, as on a machine without a cluster."""
    result = RUN.invoke(app, ["mutate", "-f", file], env={"KUBECONFIG": str(tmp_path / "absent")})

    assert isinstance(result.exception, BadInput)
    assert "absent: No such file or directory; wants a cluster to follow: --kubeconfig" in str(result.exception)


def test_whatif_and_advice_judge_pods_by_the_clusters_policies(tmp_path: Path) -> None:
    """F123, F124: a pod whose policy in the cluster requires CUDA 12.4 loses the nodes that get an old driver."""
    words = ["plan", "driver", "--to", "450.80.02", "--nodes", "nvidia.com/gpu.product=Tesla-T4", "-o", "json"]
    needs = {**OBJECT, "spec": {"priority": 7, "placement": {"cuda": {"minimum": "12.4"}}}}

    with Cluster(tmp_path, [*demo_fleet(), needs]) as cluster:
        live = json.loads(cluster.run(*words).stdout)
        advised = cluster.run("plan", "mig", "-o", "json")

    assert json.loads(RUN.invoke(app, [*words, "--demo-fleet", "mixed"]).stdout)["effects"] == []
    assert {effect["loses"] for effect in live["effects"]} == {2}
    assert set(json.loads(advised.stdout)) == {"layouts", "fitting", "unplaced", "configuration"}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_dra_objects_of_the_cluster_count(version: str, tmp_path: Path) -> None:
    """F86, F100: devices that claims can get are in the inventory of a live cluster as in that of its snapshot.

    Kubernetes 1.32 and 1.33 serve beta versions of resource.k8s.io alone.
    """
    objects = demo_fleet("dra")

    with Cluster(tmp_path, objects, dra=version) as cluster:
        live = cluster.run("inventory", "-o", "json")
    sample = RUN.invoke(app, ["inventory", "--demo-fleet", "dra", "-o", "json"])

    assert {document["kind"] for document in objects} >= {"DeviceClass", "ResourceSlice"}
    assert json.loads(live.stdout) == json.loads(sample.stdout)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_claim_is_written_in_the_version_that_the_cluster_serves(version: str, tmp_path: Path, file: str) -> None:
    """S13: `kubectl apply` of a version that the API server does not serve is an error."""
    with Cluster(tmp_path, demo_fleet("dra"), dra=version) as cluster:
        explained = json.loads(cluster.run("explain", "-f", file, "-o", "json").stdout)

    assert explained["dra"]["template"]["apiVersion"] == f"resource.k8s.io/{version}"


def test_cluster_without_dra_and_policies_is_no_trouble(tmp_path: Path, file: str) -> None:
    """F83: the paths of these kinds answer 404 there."""
    with Cluster(tmp_path, demo_fleet()) as cluster:
        result = cluster.run("explain", "-f", file, "-o", "json")

    assert result.stderr == ""
    assert json.loads(result.stdout)["nodes"] == 23


def test_what_is_not_shown_to_the_user_is_named_on_stderr(tmp_path: Path, file: str) -> None:
    """F83: policies that the user may not read could have changed the answer; stdout stays JSON."""
    with Cluster(tmp_path, demo_fleet(), forbidden=("GPUPolicy", "ConfigMap")) as cluster:
        result = cluster.run("mutate", "-f", file, "-o", "json")

    json.loads(result.stdout)
    assert PATHS["GPUPolicy"] in result.stderr
    assert PATHS["ConfigMap"] in result.stderr


BAD: dict[str, Any] = {"kind": "GPUPolicy", "metadata": {"name": "bad"}, "spec": {"placement": {"produts": {}}}}
FIELD = "gpupolicy bad: spec.placement.produts: unknown field"
STRICT = policy("strict", "priority: 50, admission: {maxGPUsPerPod: 1}")
BY_VERB = [
    ["mutate", "-f", "FILE"],
    ["explain", "-f", "FILE"],
    ["plan", "mig"],
    ["plan", "repack"],
    ["plan", "driver", "--to", "580.65.06"],
    ["plan", "node-template", "-f", "FILE"],
    ["plan", "claim-templates", "-f", "FILE"],
    ["doctor"],
]


def kept(texts: dict[str, str]) -> dict[str, Any]:
    """Build the ConfigMap that keeps the last good set."""
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "gpu-usher-policies-last-good", "namespace": "gpu-usher"},
        "data": texts,
    }


@pytest.mark.parametrize("last_good", [True, False], ids=["last good set", "valid policies alone"])
def test_verb_answers_by_what_a_replica_serves_where_the_policies_of_the_cluster_are_invalid(
    tmp_path: Path, last_good: bool
) -> None:
    """F75, F83: the last good set allows one GPU; else the valid policies and the shipped default remain."""
    file = tmp_path / "two.json"
    file.write_text(json.dumps(pod(gpus(2))), "utf-8")
    objects = [*demo_fleet(), BAD, *([kept({"strict.yaml": STRICT})] if last_good else [])]

    with Cluster(tmp_path, objects) as cluster:
        result = cluster.run("explain", "-f", str(file), "-o", "json")

    serving = "last good set" if last_good else "valid policies alone"
    assert f"the policies of the cluster are invalid, answering by the {serving}: {FIELD}" in result.stderr
    assert json.loads(result.stdout)["admission"]["allowed"] is not last_good
    assert result.exit_code == (1 if last_good else 0)


@pytest.mark.parametrize("words", BY_VERB, ids=" ".join)
def test_no_verb_fails_because_the_policies_of_the_cluster_are_invalid(
    tmp_path: Path, file: str, words: list[str]
) -> None:
    """F75: the exit code is that of the answer, as it is without the bad policy."""
    objects = demo_fleet()

    with Cluster(tmp_path, objects) as cluster:
        good = cluster.run(*(file if word == "FILE" else word for word in words))
    with Cluster(tmp_path, [*objects, BAD]) as cluster:
        bad = cluster.run(*(file if word == "FILE" else word for word in words))

    assert FIELD in bad.stderr + bad.stdout
    assert bad.exit_code == (1 if words == ["doctor"] else good.exit_code)
    assert bad.exit_code in (0, 1), bad.exception


def test_invalid_directory_of_policies_is_the_users_to_correct(tmp_path: Path, file: str) -> None:
    """F75: exit code 2 by --policies, whatever the cluster has kept."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text("kind: GPUPolicy", "utf-8")

    with Cluster(tmp_path, [*demo_fleet(), kept({"strict.yaml": STRICT})]) as cluster:
        result = cluster.run("mutate", "-f", file, "--policies", str(tmp_path / "mine"))

    assert isinstance(result.exception, PolicyError)
    assert "a.yaml" in str(result.exception)

# SPDX-License-Identifier: Apache-2.0
"""Every Deployment of ours: hardened, spread, rolled without a gap; and what its ConfigMaps hold."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.schedulerconfig.verify import verify
from app.schedulerconfig.write import URLS, ConfigurationPlan, managed_resources, write
from app.settings import Settings
from tests.builders import knowledge
from tests.deploy.rendering import DEPLOY, Object

POLICIES = DEPLOY.parent / "policies"
"""The ConfigMap is made of this folder."""
DEPLOYMENTS = ("base", "components/second-scheduler", "components/self-signed")
REPLICATED = DEPLOYMENTS[:2]


def deployment(folder: str) -> Object:
    found: Object = yaml.safe_load((DEPLOY / folder / "deployment.yaml").read_text("utf-8"))
    return found


def pod(folder: str) -> Object:
    found: Object = deployment(folder)["spec"]["template"]["spec"]
    return found


def containers(folder: str) -> list[Object]:
    return [*pod(folder).get("initContainers", []), *pod(folder)["containers"]]


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_pods_have_no_rights_on_the_node(folder: str) -> None:
    """F133, PSS-01, RBAC-06."""
    found = pod(folder)

    assert found["securityContext"]["runAsUser"] == 65532
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["enableServiceLinks"] is False
    assert found["priorityClassName"] == "system-cluster-critical"
    for each in containers(folder):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in each["resources"].get("limits", {})  # HA-07
        assert all("subPath" not in mount for mount in each["volumeMounts"])


@pytest.mark.parametrize("folder", REPLICATED)
def test_replicas_roll_without_a_gap_and_survive_a_host(folder: str) -> None:
    """F108, F111, F112, HA-01, HA-02."""
    spec = deployment(folder)["spec"]
    spread = {each["topologyKey"]: each["whenUnsatisfiable"] for each in pod(folder)["topologySpreadConstraints"]}
    budget = yaml.safe_load((DEPLOY / folder / "pdb.yaml").read_text("utf-8"))["spec"]

    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["minReadySeconds"] == 5
    assert spread == {"kubernetes.io/hostname": "DoNotSchedule", "topology.kubernetes.io/zone": "ScheduleAnyway"}
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"] == spec["selector"]


@pytest.mark.parametrize("folder", REPLICATED)
def test_probes_ask_what_each_is_for(folder: str) -> None:
    """F110, HA-05: start-up may take two minutes, readiness falls at once, liveness looks at the heartbeat alone."""
    serving = next(each for each in containers(folder) if each["args"] == ["serve"])
    probes = {name: serving[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}

    paths = {name: each["httpGet"]["path"] for name, each in probes.items()}
    assert paths == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] == 120
    assert probes["readiness"]["failureThreshold"] == 1
    assert all(each["httpGet"]["port"] == "ops" for each in probes.values())


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_every_container_is_probed(folder: str) -> None:
    """F110, HA-05: the keeper of certificates and kube-scheduler too, each on a port that it names."""
    for each in containers(folder):
        ports = {port["name"] for port in each["ports"]}
        for kind in ("startup", "readiness", "liveness"):
            assert each[f"{kind}Probe"]["httpGet"]["port"] in ports, (each["name"], kind)


def test_keeper_of_certificates_listens_where_it_is_probed() -> None:
    """F110: the flag and the port are one number; it is not scraped, for it has no metrics."""
    (keeper,) = containers("components/self-signed")
    (port,) = keeper["ports"]

    assert keeper["args"] == ["certs", "controller", f"--probe-port={port['containerPort']}"]
    assert port["name"] != "ops"


def test_a_replica_goes_on_serving_until_callers_know_that_it_leaves() -> None:
    """HA-03: preStop, drain and requests in flight fit into the grace."""
    (container,) = containers("base")

    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod("base")["terminationGracePeriodSeconds"] == 45


def test_every_shipped_policy_is_in_the_config_map() -> None:
    """A new file that nobody lists would not be deployed."""
    generated = yaml.safe_load((POLICIES / "Kustomization").read_text("utf-8"))["configMapGenerator"][0]

    assert set(generated["files"]) == {path.name for path in POLICIES.glob("*.yaml")}


@pytest.mark.parametrize(("components", "code"), [(("guards",), 0), ((), 1)], ids=["with guards", "as shipped"])
def test_guards_deny_where_the_component_is(components: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """overlays/production: the set of the ConfigMap, put together as kustomize does, through `gpu-usher test`."""
    files = [DEPLOY / "components" / name / f"{name}.yaml" for name in (*components, "second-scheduler")]
    for path in [*POLICIES.glob("*.yaml"), *files]:
        shutil.copy(path, tmp_path)
    cases = POLICIES / "cases"
    case = yaml.safe_load((cases / "a-pod-that-takes-every-gpu-by-its-environment-is-told.yaml").read_text("utf-8"))
    case["expect"] = {"allowed": False, "reasons": ["VisibleDevicesForbidden"]}
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "a-pod-that-takes-every-gpu-is-refused.yaml").write_text(yaml.safe_dump(case), "utf-8")
    shutil.copy(cases / "a-privileged-gpu-pod-is-told.yaml", tmp_path / "cases")  # real RDMA jobs are privileged
    command = [sys.executable, "-m", "app.cli.main", "test", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == code, done.stdout


def test_configuration_of_the_second_scheduler_is_the_one_we_write_and_nothing_in_it_is_dangerous() -> None:
    """F117: the file says by which command it is made."""
    path = DEPLOY / "components" / "second-scheduler" / "config.yaml"
    text = path.read_text("utf-8")
    plan = ConfigurationPlan("second", URLS["second"], "/certs/ca.crt", managed_resources((), knowledge()))

    assert text.partition("\n")[2].strip() == write(plan).strip()
    assert verify(str(path), text) == []


def test_sidecar_is_asked_on_loopback_alone_and_probed_from_anywhere() -> None:
    """F117: the kubelet probes the pod's address; nobody but the scheduler beside it may ask for placements."""
    (sidecar,) = pod("components/second-scheduler")["initContainers"]
    values = {each["name"]: each["value"] for each in sidecar["env"]}

    settings = Settings(listen=values["GPU_USHER_HOST"], ops_listen=values["GPU_USHER_OPS_HOST"])

    assert settings.host == "127.0.0.1"
    assert settings.ops_host == "::"
    assert Settings(listen="192.0.2.1").ops_host == "192.0.2.1"

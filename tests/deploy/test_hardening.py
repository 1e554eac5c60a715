# SPDX-License-Identifier: Apache-2.0
"""Every Deployment of ours is hardened, spread and rolled without a gap; and the contents of its ConfigMaps."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.schedulerconfig.write import URLS, ConfigurationPlan, managed_resources, write
from app.settings import Settings
from tests.builders import knowledge
from tests.deploy.rendering import DEPLOY, Object
from tests.schedulerconfig.checked import verify

POLICIES = DEPLOY.parent / "policies"
"""The folder of which the ConfigMap is made."""
DEPLOYMENTS = ("base", "components/second-scheduler", "components/self-signed", "components/events")
REPLICATED = DEPLOYMENTS[:2]


def deployment(folder: str) -> Object:
    document: Object = yaml.safe_load((DEPLOY / folder / "deployment.yaml").read_text("utf-8"))
    return document


def pod(folder: str) -> Object:
    spec: Object = deployment(folder)["spec"]["template"]["spec"]
    return spec


def containers(folder: str) -> list[Object]:
    return [*pod(folder).get("initContainers", []), *pod(folder)["containers"]]


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_pods_have_no_rights_on_the_node(folder: str) -> None:
    """F133, PSS-01, RBAC-06."""
    spec = pod(folder)

    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["enableServiceLinks"] is False
    assert spec["priorityClassName"] == "system-cluster-critical"
    for container in containers(folder):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in container["resources"].get("limits", {})  # HA-07
        assert all("subPath" not in mount for mount in container["volumeMounts"])


@pytest.mark.parametrize("folder", REPLICATED)
def test_replicas_roll_without_a_gap_and_survive_a_host(folder: str) -> None:
    """F108, F111, F112, HA-01, HA-02."""
    spec = deployment(folder)["spec"]
    spread = {
        constraint["topologyKey"]: (constraint["whenUnsatisfiable"], constraint.get("nodeTaintsPolicy"))
        for constraint in pod(folder)["topologySpreadConstraints"]
    }
    budget = yaml.safe_load((DEPLOY / folder / "pdb.yaml").read_text("utf-8"))["spec"]

    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["minReadySeconds"] == 5
    assert spread == {
        "kubernetes.io/hostname": ("DoNotSchedule", "Honor"),
        "topology.kubernetes.io/zone": ("ScheduleAnyway", None),
    }
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"] == spec["selector"]


@pytest.mark.parametrize("folder", REPLICATED)
def test_probes_ask_what_each_is_for(folder: str) -> None:
    """F110, HA-05: one failure ends readiness, liveness reads the heartbeat alone."""
    serving = next(container for container in containers(folder) if container["args"] == ["serve"])
    probes = {name: serving[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}

    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    assert probes["readiness"]["failureThreshold"] == 1
    assert all(probe["httpGet"]["port"] == "ops" for probe in probes.values())


@pytest.mark.parametrize("folder", [*DEPLOYMENTS, "components/claim-templates"])
def test_every_container_is_probed(folder: str) -> None:
    """F110, HA-05: this includes the controllers and kube-scheduler, each on a port that it names.

    Start-up may take two minutes: on a busy node, to start anew only costs the time of another start.
    """
    for container in containers(folder):
        ports = {port["name"] for port in container["ports"]}
        for kind in ("startup", "readiness", "liveness"):
            assert container[f"{kind}Probe"]["httpGet"]["port"] in ports, (container["name"], kind)
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 120, container["name"]


def test_keeper_of_certificates_listens_where_it_is_probed() -> None:
    """F110: the flag and the port have one number; it is not scraped, as it has no metrics."""
    (keeper,) = containers("components/self-signed")
    (port,) = keeper["ports"]

    assert keeper["args"] == ["certs", "controller", f"--probe-port={port['containerPort']}"]
    assert port["name"] != "ops"


def test_a_replica_goes_on_serving_until_callers_know_that_it_leaves() -> None:
    """HA-03: preStop, drain and running requests fit into the grace period."""
    (container,) = containers("base")

    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod("base")["terminationGracePeriodSeconds"] == 45


def test_every_shipped_policy_is_in_the_config_map() -> None:
    """A new policy file that the kustomization does not list would not be deployed."""
    generated = yaml.safe_load((POLICIES / "Kustomization").read_text("utf-8"))["configMapGenerator"][0]

    assert set(generated["files"]) == {path.name for path in POLICIES.glob("*.yaml")}


@pytest.mark.parametrize(("components", "code"), [(("guards",), 0), ((), 1)], ids=["with guards", "as shipped"])
def test_guards_deny_where_the_component_is(components: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """In overlays/production: the set of the ConfigMap as kustomize builds it passes `gpu-usher policy test`."""
    files = [DEPLOY / "components" / name / f"{name}.yaml" for name in (*components, "second-scheduler")]
    for path in [*POLICIES.glob("*.yaml"), *files]:
        shutil.copy(path, tmp_path)
    cases = POLICIES / "cases"
    policy_case = yaml.safe_load(
        (cases / "a-pod-that-takes-every-gpu-by-its-environment-is-told.yaml").read_text("utf-8")
    )
    policy_case["expect"] = {"allowed": False, "reasons": ["VisibleDevicesForbidden"]}
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "a-pod-that-takes-every-gpu-is-refused.yaml").write_text(yaml.safe_dump(policy_case), "utf-8")
    shutil.copy(cases / "a-privileged-gpu-pod-is-told.yaml", tmp_path / "cases")  # real RDMA jobs are privileged
    command = [sys.executable, "-m", "app.cli.main", "policy", "test", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == code, done.stdout


def test_configuration_of_the_second_scheduler_is_the_one_we_write_and_nothing_in_it_is_dangerous() -> None:
    """F117: the file names the command that writes it, for a cluster where GPUs can be claimed."""
    path = DEPLOY / "components" / "second-scheduler" / "config.yaml"
    text = path.read_text("utf-8")
    plan = ConfigurationPlan("second", URLS["second"], b"", managed_resources((), knowledge()), claims=True)

    assert text.partition("\n")[2] == write(plan)
    assert verify(str(path), text) == []


def test_sidecar_is_asked_on_loopback_alone_and_probed_from_anywhere() -> None:
    """F117: the kubelet probes the pod's address; only the scheduler beside the sidecar may call the extender."""
    (sidecar,) = pod("components/second-scheduler")["initContainers"]
    values = {variable["name"]: variable["value"] for variable in sidecar["env"]}

    settings = Settings(listen=values["GPU_USHER_HOST"], ops_listen=values["GPU_USHER_OPS_HOST"])

    assert settings.host == "127.0.0.1"
    assert f"http://{values['GPU_USHER_SCHEDULER_ADDRESS']}/scheduler" == URLS["second"]
    assert settings.ops_host == "::"
    assert Settings(listen="192.0.2.1").ops_host == "192.0.2.1"

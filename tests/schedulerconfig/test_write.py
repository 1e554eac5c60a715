# SPDX-License-Identifier: Apache-2.0
"""The configuration that we write is safe for a scheduler that calls us, and passes our own check."""

import base64
from typing import Any

import pytest
import yaml

from app.schedulerconfig.verify import batchable_profiles
from app.schedulerconfig.write import (
    OWN_NAME,
    ConfigurationPlan,
    Target,
    managed_resources,
    packed_resources,
    read_ca,
    read_extender_url,
    write,
)
from app.values.errors import BadInput
from tests.builders import knowledge, node
from tests.schedulerconfig.checked import verify

CA = b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"


def plan(target: Target = "second", **more: Any) -> ConfigurationPlan:
    resources = more.pop("resources", managed_resources([], knowledge()))
    more = {"filter_answer": "all", **more}
    return ConfigurationPlan(target, "https://127.0.0.1:8443/scheduler", CA, resources, **more)


def written(made: ConfigurationPlan) -> dict[str, Any]:
    configuration: dict[str, Any] = yaml.safe_load(write(made))
    return configuration


@pytest.mark.parametrize("answer", ["all", "shortlist"])
@pytest.mark.parametrize("target", ["second", "default"])
def test_every_form_passes_our_own_check(target: Target, answer: str) -> None:
    """F88."""
    assert verify("ours.yaml", write(plan(target, filter_answer=answer))) == []


def test_extender_is_called_by_names_over_verified_tls_and_asked_before_evicting() -> None:
    """P6, P8, P27, F88, EXT-08."""
    [extender] = written(plan())["extenders"]
    resources = extender.pop("managedResources")

    assert extender == {
        "urlPrefix": "https://127.0.0.1:8443/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 10,
        "preemptVerb": "preempt",
        "enableHTTPS": True,
        "tlsConfig": {"caData": base64.b64encode(CA).decode(), "serverName": "gpu-usher.gpu-usher.svc"},
        "httpTimeout": "2s",
        "nodeCacheCapable": True,
        "ignorable": False,
    }
    assert not any(row["ignoredByScheduler"] for row in resources)


def test_plain_http_on_loopback_needs_no_certificate() -> None:
    """Beside the scheduler, in one pod (docs/reference/listeners.md#scheduler)."""
    [extender] = written(ConfigurationPlan("second", read_extender_url("http://127.0.0.1:8444/scheduler"), b"", ()))[
        "extenders"
    ]

    assert extender["enableHTTPS"] is False
    assert "tlsConfig" not in extender


@pytest.mark.parametrize("answer", ["all", "shortlist"])
@pytest.mark.parametrize("target", ["second", "default"])
def test_every_pod_reaches_us_by_an_extender_that_may_fail(target: Target, answer: str) -> None:
    """F61, F88: GPU pods wait for us, and all others are scheduled while no replica answers."""
    text = write(plan(target, every_pod=True, filter_answer=answer))

    gpu_pods, other_pods = yaml.safe_load(text)["extenders"]
    assert (gpu_pods["ignorable"], "managedResources" in gpu_pods) == (False, True)
    assert (other_pods["ignorable"], "managedResources" in other_pods) == (True, False)
    assert other_pods["urlPrefix"] == gpu_pods["urlPrefix"] + "/other-pods"
    assert other_pods["prioritizeVerb"] == "prioritize"
    assert "--every-pod" in text
    assert verify("ours.yaml", text) == []


def test_scheduler_of_gpu_pods_is_to_ask_about_all_of_them_where_gpus_can_be_claimed() -> None:
    """F88, F135: a pod with claims alone names no resource; of the cluster's own scheduler a second extender asks."""
    second, default = plan(claims=True), plan("default", claims=True, filter_answer="shortlist")

    [extender] = written(second)["extenders"]
    gpu_pods, other_pods = written(default)["extenders"]
    assert (extender["ignorable"], "managedResources" in extender) == (False, False)
    assert (other_pods["ignorable"], "prioritizeVerb" in other_pods) == (True, False)
    assert "managedResources" in gpu_pods
    assert all(verify("ours.yaml", write(made), claims=True) == [] for made in (second, default))


def test_shortlist_needs_no_prioritize() -> None:
    """F88: kube-scheduler would accept a weight without a prioritize verb, but it would have no effect."""
    [extender] = written(plan(filter_answer="shortlist"))["extenders"]

    assert not {"prioritizeVerb", "weight"} & set(extender)


def test_every_mig_profile_and_whatever_the_fleet_offers_is_managed() -> None:
    """P12, F88: kube-scheduler compares whole names, and a node may get other MIG profiles later."""
    offered = node(offers={"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb.shared": 4})

    resources = managed_resources([offered], knowledge())

    assert {"nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"} <= set(resources)
    assert {"nvidia.com/mig-1g.10gb.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-7g.80gb"} <= set(resources)
    assert sorted(set(resources)) == list(resources)


@pytest.mark.parametrize(
    ("target", "lease", "name"),
    [
        ("second", ("gpu-usher", "gpu-usher-scheduler"), "gpu-usher-scheduler"),
        ("default", ("kube-system", "kube-scheduler"), "default-scheduler"),
    ],
)
def test_second_scheduler_has_a_lease_and_a_name_of_its_own(target: Target, lease: tuple[str, str], name: str) -> None:
    """F117."""
    configuration = written(plan(target))
    election = configuration["leaderElection"]

    assert lease == (election["resourceNamespace"], election["resourceName"])
    assert name == configuration["profiles"][0]["schedulerName"]


@pytest.mark.parametrize(
    ("target", "nodes", "expected"),
    [("second", 1000, 100), ("second", 1001, 0), ("second", 0, 0), ("default", 1000, 0)],
    ids=["small", "large", "unknown", "shared with all pods"],
)
def test_all_nodes_are_scored_where_that_is_cheap(target: Target, nodes: int, expected: int) -> None:
    """P5."""
    assert expected == written(plan(target, nodes=nodes))["profiles"][0]["percentageOfNodesToScore"]


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:8443/scheduler",
        "https://10.96.0.12/scheduler/",
        "https://[::1]:8443/scheduler",
        "http://127.0.0.1:8444/scheduler",
        "http://[::1]/scheduler",
        "https://gpu-usher.gpu-usher.svc:443/a/scheduler",
    ],
)
def test_url_stands_in_the_file_as_given(url: str) -> None:
    """F88."""
    made = ConfigurationPlan("second", read_extender_url(url), CA, ("nvidia.com/gpu",))

    assert url.rstrip("/") == written(made)["extenders"][0]["urlPrefix"]


@pytest.mark.parametrize(
    "url",
    [
        "http://10.96.0.12/scheduler",
        "http://127.0.0.1.example.com/scheduler",
        "https://x/filter",
        "https:///scheduler",
        "https://x/scheduler # y",
        "https://x\ninsecure: true/scheduler",
        "https://user@x/scheduler",
        "",
    ],
)
def test_url_that_a_scheduler_cannot_call_safely_is_refused(url: str) -> None:
    """F88: neither may a URL write further fields into the file."""
    with pytest.raises(BadInput, match="wants https://HOST:PORT/scheduler"):
        read_extender_url(url)


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        (b"", "got no certificate"),
        (CA + b"-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n", "got a private key"),
    ],
    ids=["empty", "with its key"],
)
def test_only_certificates_go_into_the_file(pem: bytes, words: str) -> None:
    """F88: anyone may read the configuration."""
    with pytest.raises(BadInput, match=words):
        read_ca("ca.pem", pem)


@pytest.mark.parametrize("target", ["second", "default"])
def test_default_scheduler_reads_kubeadms_kubeconfig_and_a_second_its_own_account(target: Target) -> None:
    """F88."""
    connection = written(plan(target)).get("clientConnection")

    assert connection == ({"kubeconfig": "/etc/kubernetes/scheduler.conf"} if target == "default" else None)


@pytest.mark.parametrize(
    "field",
    [
        "urlPrefix",
        "filterVerb",
        "weight",
        "preemptVerb",
        "caData",
        "httpTimeout",
        "nodeCacheCapable",
        "ignorable",
        "managedResources",
        "percentageOfNodesToScore",
    ],
)
def test_field_that_matters_says_why_it_is_there(field: str) -> None:
    """F88: a comment beside the field, or in the line above, says it."""
    lines = write(plan()).splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip(" -").startswith(f"{field}:"))

    assert "# " in lines[at] or lines[at - 1].lstrip().startswith("# ")


@pytest.mark.parametrize("target", ["second", "default"])
def test_without_an_extender_gpus_and_cpu_are_balanced_and_pods_batched(target: Target) -> None:
    """F88: nothing calls us, GPU pods have a profile of their own, and other pods keep theirs."""
    text = write(plan(target, extender=False, nodes=5000))

    document = yaml.safe_load(text)
    *others, own = document["profiles"]
    args = {row["name"]: row["args"] for row in own["pluginConfig"]}
    assert "extenders" not in document
    assert others == ([{"schedulerName": "default-scheduler"}] if target == "default" else [])
    assert own["schedulerName"] == OWN_NAME
    assert own["plugins"]["score"]["disabled"] == [{"name": "NodeResourcesFit"}]
    assert {"cpu", "nvidia.com/gpu", "amd.com/gpu"} <= {
        row["name"] for row in args["NodeResourcesBalancedAllocation"]["resources"]
    }
    assert batchable_profiles(document) == (OWN_NAME,)
    assert verify("ours.yaml", text) == []


def test_kube_scheduler_alone_packs_by_the_resources_that_nodes_offer() -> None:
    """F88: each further name costs time for each node and pod; without nodes no MIG profile is listed."""
    offered = node(offers={"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 7})

    assert packed_resources([offered], knowledge()) == ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb")
    assert {"nvidia.com/gpu", "amd.com/gpu"} < set(packed_resources([], knowledge()))
    assert not any("mig-" in name for name in packed_resources([], knowledge()))


def test_check_of_a_configuration_without_an_extender_finds_the_lease_of_another_scheduler() -> None:
    """F88."""
    document = yaml.safe_load(write(plan("second", extender=False)))
    del document["leaderElection"]

    [finding] = verify("ours.yaml", yaml.safe_dump(document))

    assert "the lease of the cluster's own scheduler" in finding.message

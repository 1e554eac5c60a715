# SPDX-License-Identifier: Apache-2.0
"""The doctor on a live cluster: no finding on what deploy/ installs, and one finding for each thing that is broken."""

from typing import Any

import pytest

from app.doctor.cluster_checks import CHECKS, NEWEST_TESTED, OLDEST_TESTED, READS, examine_cluster
from app.doctor.cluster_objects import Certificate, SlippedReport, asks_for_gpus
from app.doctor.fleet_checks import FindingLevel
from app.policy.compiled import PolicySet
from tests.builders import gpus, knowledge, node, pod
from tests.doctor.healthy_cluster import (
    FAMILY,
    GPU,
    MUTATING,
    NAMED,
    NO_GPU,
    RULES,
    TAINT,
    VALIDATING,
    A,
    Break,
    Object,
    P,
    change_client_config,
    change_webhook,
    cluster,
    daemon,
    deployment,
    foreign_webhook,
    job,
    levels_by_check,
    node_pool,
    put,
    rule,
    scheduler,
)

EVERYWHERE: Object = {"namespaceSelector": {}}
OURS = "explain.gpu-usher.io"


def api_service(group: str, available: str = "False") -> Object:
    condition = {"type": "Available", "status": available, "message": "failing or missing response"}
    service = {"name": "gpu-usher", "namespace": "gpu-usher", "port": 8445}
    return {
        "metadata": {"name": f"v1.{group}"},
        "spec": {"group": group, "service": service},
        "status": {"conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        pytest.param(lambda _: None, {}, id="as installed"),
        pytest.param(put(MUTATING), {"WebhookAbsent": P}, id="no mutating webhook"),
        pytest.param(lambda objects: objects.pop(MUTATING), {}, id="webhooks that could not be read"),
        pytest.param(change_webhook({"rules": []}), {"WebhookNeverCalled": P}, id="no rule"),
        pytest.param(change_client_config({"caBundle": ""}), {"CABundleAbsent": P}, id="fault 45: caBundle wiped"),
        pytest.param(
            change_client_config({"caBundle": "", "service": None, "url": "https://a"}), {}, id="an address, public CA"
        ),
        pytest.param(change_webhook({"timeoutSeconds": 10}), {"WebhookTimeout": A}, id="P43: ten seconds"),
        pytest.param(change_webhook({"timeoutSeconds": 1}), {"WebhookTimeout": A}, id="one second"),
        pytest.param(change_webhook({"failurePolicy": "Fail"}), {"FailurePolicy": A}, id="mutate fails closed"),
        pytest.param(
            change_webhook({"failurePolicy": "Ignore"}, VALIDATING), {"FailurePolicy": A}, id="validate fails open"
        ),
        pytest.param(change_webhook(EVERYWHERE), {"ExemptsTooLittle": A}, id="P43: mutate of our own namespace"),
        pytest.param(
            change_webhook(EVERYWHERE, VALIDATING), {"ExemptsTooLittle": P}, id="P43: validate, failing closed"
        ),
        pytest.param(change_webhook({"matchConditions": []}), {"NoMatchConditions": P}, id="F22: called for every pod"),
        pytest.param(
            change_webhook({"objectSelector": {"matchLabels": {"a": "b"}}}),
            {"ExemptsTooMuch": P},
            id="F21: a pod's own label",
        ),
        pytest.param(change_webhook({"reinvocationPolicy": "Never"}), {"NotCalledAgain": P}, id="F23"),
        pytest.param(foreign_webhook("hami-webhook"), {"OtherAllocator": A}, id="another allocator"),
        pytest.param(foreign_webhook("hami", resource="services"), {}, id="another's, not of pods"),
        pytest.param(foreign_webhook("istio-sidecar-injector"), {}, id="another's, not of GPUs"),
        pytest.param(foreign_webhook("hami", kind=VALIDATING), {}, id="another's that only validates"),
        pytest.param(put("Deployment", deployment("gpu-usher", 2)), {"ReplicasUnavailable": A}, id="one short"),
        pytest.param(put("APIService", api_service(OURS, "True")), {}, id="our API is available"),
        pytest.param(put("APIService", api_service(OURS)), {"APIServiceUnavailable": P}, id="our API is not"),
        pytest.param(
            put("APIService", api_service("metrics.k8s.io")), {"APIServiceUnavailable": A}, id="another's is not"
        ),
        pytest.param(put("APIService", {**api_service("apps"), "spec": {}}), {}, id="an API of kube-apiserver's own"),
        pytest.param(put("APIService", {**api_service(OURS), "status": {}}), {}, id="an API that was just registered"),
        pytest.param(scheduler("v1.36.9"), {}, id="scheduler of the same minor"),
        pytest.param(scheduler("v1.35.1@sha256:00"), {"SchedulerVersion": A}, id="scheduler one behind"),
        pytest.param(scheduler("v1.34.0"), {"SchedulerVersion": P}, id="scheduler two behind"),
        pytest.param(scheduler("v1.37.0"), {"SchedulerVersion": P}, id="scheduler ahead"),
        pytest.param(scheduler("latest"), {}, id="scheduler that does not say"),
        pytest.param(put("RuntimeClass"), {"RuntimeClassAbsent": A}, id="P34"),
        pytest.param(
            put("RuntimeClass", {"metadata": {"name": "nvidia"}, "scheduling": {"nodeSelector": {"a": "b"}}}),
            {"RuntimeClassSelector": P},
            id="a RuntimeClass for other nodes",
        ),
        pytest.param(
            put("DaemonSet", daemon("nvidia-device-plugin", 0), daemon("gpu-feature-discovery")),
            {"DevicePlugin": P},
            id="device plugin not ready",
        ),
        pytest.param(put("DaemonSet", daemon("gpu-feature-discovery")), {"DevicePlugin": A}, id="no device plugin"),
        pytest.param(put("DaemonSet", daemon("nvidia-device-plugin")), {"GPUFeatureDiscovery": A}, id="F73: no GFD"),
        pytest.param(node_pool([NAMED], TAINT), {}, id="a good NodePool"),
        pytest.param(node_pool([NAMED]), {"NodePoolUntainted": A}, id="P39: NodePool without taint"),
        pytest.param(node_pool([FAMILY], TAINT), {"NodePoolUnlabelled": A}, id="P16: NodePool that tells no product"),
        pytest.param(node_pool([FAMILY], TAINT, **{"nvidia.com/gpu.product": "H100"}), {}, id="one that does by label"),
        pytest.param(node_pool([NO_GPU]), {}, id="a NodePool without GPUs"),
        pytest.param(job({"requests": {GPU: 1}}), {"RequestsOnly": A}, id="P36: requests alone"),
        pytest.param(job({"requests": {GPU: 1}, "limits": {GPU: 1}}), {}, id="requests and limits"),
    ],
)
def test_what_is_broken_is_named_and_nothing_else(broken: Break, expected: dict[str, FindingLevel]) -> None:
    """F87, P5, P11, P16, P34, P36, P39, P43."""
    assert expected == levels_by_check(cluster(broken))


def test_rights_that_replicas_with_events_need_are_not_advised_away() -> None:
    """F104, F139: as installed before the controller wrote them."""

    def write_events(objects: dict[str, list[Object]]) -> None:
        (serving,) = objects["Deployment"]
        serving["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "GPU_USHER_EVENTS", "value": "true"}]

    rules = (*RULES, rule("events.k8s.io", ["events"], "create", "patch"))

    assert levels_by_check(cluster(write_events, rules=rules)) == {}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({"ahead_seconds": None}, {}, id="no Date header"),
        pytest.param({"ahead_seconds": -29.0}, {}, id="clock a little behind"),
        pytest.param({"ahead_seconds": -600.0}, {"ClockSkew": A}, id="fault 46: ten minutes"),
        pytest.param({"ahead_seconds": 3600.0}, {"ClockSkew": P}, id="fault 46: an hour"),
        pytest.param({"version": "v1.29.14"}, {"KubernetesVersion": P}, id="too old"),
        pytest.param({"version": "v1.30.2"}, {"KubernetesVersion": A}, id="older than what is tested"),
        pytest.param({"version": f"v1.{OLDEST_TESTED}.0"}, {}, id="the oldest that is tested"),
        pytest.param({"version": f"v1.{NEWEST_TESTED}.1"}, {}, id="the newest that is tested"),
        pytest.param({"version": f"v1.{NEWEST_TESTED + 1}.0"}, {"KubernetesVersion": A}, id="newer than tested"),
        pytest.param({"version": "v1.34.5-gke.1"}, {}, id="a cloud's"),
        pytest.param({"certificates": (Certificate("s", 0.8, "soon"),)}, {"CertificateExpires": A}, id="P44: overdue"),
        pytest.param({"certificates": (Certificate("s", 0.95, "soon"),)}, {"CertificateExpires": P}, id="P44: urgent"),
        pytest.param(
            {"certificates": (Certificate("s", 0.1, "", ("no",)),)}, {"Certificate": P}, id="P44: not accepted"
        ),
        pytest.param({"rules": None}, {}, id="rights not known"),
        pytest.param({"rules": RULES[1:]}, {"RightsMissing": P}, id="F104: may not read nodes"),
        pytest.param({"rules": (rule("*", ["*"], "*"),)}, {"RightsTooWide": A}, id="F104: may do anything"),
        pytest.param(
            {"rules": (*RULES, rule("events.k8s.io", ["events"], "create", "patch"))},
            {"RightsTooWide": A},
            id="F104: may write Events, which the controller does",
        ),
        pytest.param({"slipped": (SlippedReport("a/p", "unadmitted"),)}, {"Unadmitted": A}, id="F98, P11: unadmitted"),
        pytest.param(
            {"slipped": (SlippedReport("a/p", "misplaced", "DriverTooOld"),)}, {"Misplaced": P}, id="F98: misplaced"
        ),
        pytest.param({"refused": {"Secret x": "403: no"}}, {"NotLookedAt": A}, id="refused"),
    ],
)
def test_what_was_found_out_is_judged(more: dict[str, Any], expected: dict[str, FindingLevel]) -> None:
    """F87, F98, F104, P11, P44, fault 46."""
    assert expected == levels_by_check(cluster(**more))


def test_missing_runtime_class_is_said_once_also_where_no_label_is_nvidias_and_only_if_a_policy_gives_it() -> None:
    """A cloud's nodes have the resource and no label of NVIDIA's. The finding is one, whatever the number of nodes."""
    nodes = tuple(node(name, product=None, driver=None) for name in ("a", "b"))

    absent = [
        finding
        for finding in examine_cluster(cluster(put("RuntimeClass"), nodes=nodes))
        if "RuntimeClass" in finding.check
    ]
    unwanted = examine_cluster(cluster(put("RuntimeClass"), nodes=nodes, policies=PolicySet((), "")))

    assert [(finding.check, finding.objects) for finding in absent] == [
        ("RuntimeClassAbsent", ("RuntimeClass nvidia",))
    ]
    assert not [finding for finding in unwanted if "RuntimeClass" in finding.check]


def test_two_webhooks_with_one_fault_are_one_finding() -> None:
    broken = change_webhook({"timeoutSeconds": 30})

    [finding] = examine_cluster(
        cluster(lambda objects: [broken(objects), change_webhook({"timeoutSeconds": 30}, VALIDATING)(objects)])
    )

    assert len(finding.objects) == 2
    assert len(CHECKS) == len(set(CHECKS))


def test_earlier_webhook_that_is_never_called_again_is_told_apart() -> None:
    """F23: our webhook is gpu-usher; hami comes after it by name, and gpu-other before it."""
    messages = [
        next(
            finding.what
            for finding in examine_cluster(cluster(foreign_webhook(name, never)))
            if finding.check == "OtherAllocator"
        )
        for name, never in (("hami", True), ("gpu-other", True), ("gpu-other", False))
    ]

    assert ["never again" in words for words in messages] == [False, True, False]


def test_rights_for_dra_are_asked_for_where_devices_are_published() -> None:
    """F135: ResourceSlices in the cluster require the rights of the component dra."""
    [finding] = examine_cluster(cluster(put("ResourceSlice", {"metadata": {"name": "s"}})))

    assert finding.check == "RightsMissing"
    assert "resourceslices" in finding.what


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["kube-root-ca.crt"], {"PoliciesAbsent": P}, id="A10: deleted"),
        pytest.param(["gpu-usher-policies"], {}, id="there"),
    ],
)
def test_config_map_of_policies_that_was_deleted_is_missed(names: list[str], expected: dict[str, FindingLevel]) -> None:
    """F131: the replicas go on with the last good set, so that nothing else tells of it."""
    config_maps = [{"metadata": {"name": name, "namespace": "gpu-usher"}} for name in names]

    assert expected == levels_by_check(cluster(put("ConfigMap", *config_maps)))


@pytest.mark.parametrize("allowed", [True, False])
def test_policies_that_the_replicas_may_not_read_are_a_problem(allowed: bool) -> None:
    """F131, F104: the definition was applied without its RBAC; the policies look as if they were in force."""
    rights = (rule("gpu-usher.io", ["gpupolicies"], *READS),) if allowed else ()
    examined = cluster(put("GPUPolicy", {"metadata": {"name": "team"}}), rules=(*RULES, *rights))

    assert levels_by_check(examined) == ({} if allowed else {"PoliciesUnreadable": P})


def definition(*served: str, storage: str = "v1alpha1", stored: tuple[str, ...] = ("v1alpha1",)) -> Object:
    """Build the part of the CustomResourceDefinition of GPUPolicy that is examined."""
    names = sorted({*served, storage})
    versions = [{"name": name, "served": name in served, "storage": name == storage} for name in names]
    status = {"storedVersions": list(stored)} if stored else {}
    return {"metadata": {"name": "gpupolicies.gpu-usher.io"}, "spec": {"versions": versions}, "status": status}


BOTH = ("v1alpha1", "v1beta1")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(definition(*BOTH), {}, id="as installed"),
        pytest.param(definition("v1alpha1"), {"PolicyVersionAbsent": A}, id="of the former release"),
        pytest.param(definition("v1alpha1", storage="v1beta1", stored=("v1beta1",)), {"PolicyVersionAbsent": A},
                     id="not served"),
        pytest.param(definition("v1beta1", "v1", storage="v1", stored=("v1",)), {}, id="of a later release"),
        pytest.param(definition(*BOTH, storage="v1beta1", stored=BOTH), {"PolicyStoredVersion": A}, id="not migrated"),
        pytest.param(definition(*BOTH, stored=BOTH), {"PolicyStoredVersion": A}, id="rolled back"),
        pytest.param(definition(*BOTH, storage="v1beta1", stored=("v1beta1",)), {}, id="migrated"),
        pytest.param(definition(*BOTH, stored=()), {}, id="just created"),
    ],
)  # fmt: skip
def test_versions_of_the_definition_are_examined(item: Object, expected: dict[str, FindingLevel]) -> None:
    """F131, F87."""
    assert levels_by_check(cluster(put("CustomResourceDefinition", item))) == expected


def test_remedy_of_stored_versions_names_the_storage_version() -> None:
    """F131, F87: tests/e2e/test_policy_versions.py runs it."""
    (finding,) = examine_cluster(
        cluster(put("CustomResourceDefinition", definition(*BOTH, storage="v1beta1", stored=BOTH)))
    )

    assert "stored as v1alpha1," in finding.what
    assert """'{"status":{"storedVersions":["v1beta1"]}}'""" in finding.remedy


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(pod(), True, id="limits"),
        pytest.param(pod(gpus(0)), True, id="zero is still named"),
        pytest.param({"spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]}}, True, id="DRA"),
        pytest.param({"spec": {"containers": [{"name": "c"}]}}, False, id="CPU"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_only_pods_that_ask_for_gpus_are_kept(document: Object, expected: bool) -> None:
    assert expected == asks_for_gpus(document, knowledge().families)

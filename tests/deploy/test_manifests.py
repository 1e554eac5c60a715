# SPDX-License-Identifier: Apache-2.0
"""The manifests: match conditions generated from the resource families, and rights to read only."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app import __version__
from app.admission.match_conditions import claim_conditions, cpu_guard_conditions, match_conditions
from app.admission.review_targets import WORKLOADS
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.api.admission_routes import VERSION
from app.cli.made_texts import conditions_text
from app.cluster.files import shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.cluster.watched_kinds import core_kinds, dra_kinds, policy_kinds, taint_rule_kinds
from app.doctor.cluster_checks import NEEDED
from app.events.planning import STEPS
from app.events.waking import wake_path
from app.events.writer import lease_path
from app.kube.api_kinds import API_KINDS, DRA
from app.policy.load import LAST_GOOD, LAST_GOOD_LABEL_VALUE, MOUNTED, POLICY_LABEL, POLICY_LABEL_VALUE
from app.telemetry.logs import today
from app.tls.controller import API_SERVICE, REGISTRATION, Names
from app.world.state import State
from tests.builders import knowledge
from tests.deploy.exemptions import exemptions_text

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
READ = {"get", "list", "watch"}
WEBHOOKS = (
    ("base", "webhooks.yaml"),
    ("components", "crd", "webhook.yaml"),
    ("components", "cpu-guard", "webhook.yaml"),
    ("components", "queued-jobs", "webhook.yaml"),
)
REVIEWING = ("mutate.gpu-usher.io", "validate.gpu-usher.io")


def documents(*parts: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(DEPLOY.joinpath(*parts).read_text("utf-8")))


def webhooks() -> dict[str, dict[str, Any]]:
    all_webhooks = (webhook for parts in WEBHOOKS for document in documents(*parts) for webhook in document["webhooks"])
    return {webhook["name"]: webhook for webhook in all_webhooks}


@pytest.mark.parametrize("name", REVIEWING)
def test_match_conditions_are_those_generated_from_the_families(name: str) -> None:
    """F22: a condition without quotes, or a changed family, would fail here."""
    assert match_conditions(knowledge()) == webhooks()[name]["matchConditions"]


def test_match_conditions_are_printed_for_who_edits_the_manifests() -> None:
    printed = yaml.safe_load(conditions_text())

    assert printed["mutate, validate"] == webhooks()["mutate.gpu-usher.io"]["matchConditions"]
    assert printed["devices"] == webhooks()["devices.gpu-usher.io"]["matchConditions"]
    assert printed["cpu-guard"] == webhooks()["cpu-guard.gpu-usher.io"]["matchConditions"]


@pytest.mark.parametrize("verb", ["mutate", "validate"])
def test_claims_that_may_be_for_gpus_are_sent_when_they_are_created(verb: str) -> None:
    """F166."""
    webhook = webhooks()[f"{verb}-claims.gpu-usher.io"]
    rule, *others = webhook["rules"]

    assert webhook["matchConditions"] == claim_conditions(knowledge().families)
    assert webhook["clientConfig"]["service"]["path"] == f"/{verb}"
    assert (rule["operations"], rule["apiVersions"]) == (["CREATE"], list(API_KINDS["ResourceClaim"].versions))
    assert [one["resources"] for one in others] == ([["resourceclaims/status"]] if verb == "validate" else [])
    assert rule["resources"] == [API_KINDS[kind].plural for kind in ("ResourceClaim", "ResourceClaimTemplate")]
    assert webhook["namespaceSelector"] == webhooks()["mutate.gpu-usher.io"]["namespaceSelector"]


def test_queued_jobs_are_the_kinds_of_the_table_outside_the_exempt_namespaces() -> None:
    """F153: a kind of the table that no rule names is never reviewed."""
    webhook = webhooks()["queued-jobs.gpu-usher.io"]
    rules = webhook["rules"]
    sent = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}

    assert sent == {resource for resource, kind in knowledge().workloads.items() if kind.templates or kind.objects}
    assert {operation for rule in rules for operation in rule["operations"]} == {"CREATE", "UPDATE"}
    assert webhook["namespaceSelector"] == webhooks()["mutate.gpu-usher.io"]["namespaceSelector"]
    assert webhook["failurePolicy"] == "Ignore"


def test_cpu_guard_is_for_the_pods_that_ask_for_no_gpu() -> None:
    """F47."""
    guard = webhooks()["cpu-guard.gpu-usher.io"]

    assert cpu_guard_conditions(knowledge().families) == guard["matchConditions"]
    assert guard["namespaceSelector"]["matchExpressions"][0]["key"] == "gpu-usher.io/cpu-guard"


@pytest.mark.parametrize("name", REVIEWING)
def test_rules_name_the_workloads_and_operations_that_are_reviewed(name: str) -> None:
    """F18: a kind that the API server does not send is never repaired; one that we do not review costs no call."""
    sent = {
        (group, resource): frozenset(rule["operations"])
        for rule in webhooks()[name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    pods = {("", "pods"): {"CREATE"}, ("", "pods/ephemeralcontainers"): {"UPDATE"}, ("", "pods/resize"): {"UPDATE"}}
    assert sent == {**pods, **{kind: operations for kind, (_, operations) in WORKLOADS.items()}}


@pytest.mark.parametrize("name", REVIEWING)
def test_exempt_namespaces_are_those_of_the_families(name: str) -> None:
    """P43, F21, F107: the API server and the service exempt the same names and the same labels."""
    named, *labelled = webhooks()[name]["namespaceSelector"]["matchExpressions"]

    assert named["operator"] == "NotIn"
    assert sorted(named["values"]) == sorted(knowledge().families.infrastructure_namespaces)
    assert [(expression["key"], expression["operator"], expression["values"]) for expression in labelled] == [
        (key, "NotIn", ["true"]) for key in EXEMPT_LABELS
    ]


def test_policy_on_exemptions_is_the_one_that_is_generated() -> None:
    """F21."""
    assert (DEPLOY / "base" / "exemptions.yaml").read_text("utf-8") == exemptions_text()


def test_only_the_validation_of_pods_and_claims_fails_closed() -> None:
    """P43, F106, ADM-01, ADM-02, ADM-09: a policy must be correctable while we are down."""
    by_name = webhooks()

    assert [name for name, webhook in by_name.items() if webhook["failurePolicy"] == "Fail"] == [
        "validate.gpu-usher.io",
        "validate-claims.gpu-usher.io",
    ]
    for webhook in by_name.values():
        assert webhook["sideEffects"] == "None"
        assert webhook["timeoutSeconds"] <= 3
        if webhook["clientConfig"]["service"]["path"] == "/mutate":
            assert webhook["reinvocationPolicy"] == "IfNeeded"


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        pytest.param(("base", "rbac.yaml"), (*NEEDED, "PodGroup", "NodeResourceTopology"), id="base"),
        pytest.param(("components", "dra", "rbac.yaml"), DRA, id="dra"),
        pytest.param(("components", "crd", "rbac.yaml"), ("GPUPolicy",), id="crd"),
    ],
)
def test_the_serving_identity_may_read_and_nothing_else(parts: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    """P9, P10, F104: it may neither write nor read Secrets."""
    rules = [rule for document in documents(*parts) for rule in document.get("rules", [])]
    granted = {(group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"]}

    assert granted == {(API_KINDS[kind].group, API_KINDS[kind].plural) for kind in kinds}
    assert all(set(rule["verbs"]) <= READ for rule in rules)
    assert all(set(rule["verbs"]) == READ for rule in rules if rule["resources"] != ["podgroups"])


def test_every_watched_kind_is_one_that_the_serving_identity_may_read() -> None:
    """The doctor, RBAC and the watches follow one table."""
    state, book = State(knowledge()), PolicyBook(shipped_policies(), knowledge(), today)
    dra = (*dra_kinds(state, "v1"), *taint_rule_kinds(state, "v1"))
    watched = {kind.name for kind in (*core_kinds(state, book, "ours"), *dra, *policy_kinds(book, "v1"))}

    assert watched == {API_KINDS[kind].plural for kind in (*NEEDED, *DRA, "GPUPolicy")}


def test_events_are_all_that_the_controller_may_write() -> None:
    """F139, F104: and the Lease by name, so that one process writes; what it reads besides is one object at a time.

    F140: and the one object whose change wakes pods. F76, F131: and the last good policies, and the status of policies.
    """
    roles = [document for document in documents("components", "events", "rbac.yaml") if document.get("rules")]
    rules = [rule for role in roles for rule in role["rules"]]
    writing = [rule for rule in rules if set(rule["verbs"]) - {"get"}]

    assert writing == [
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["gpu-usher.io"], "resources": ["gpupolicies/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [lease_path("gpu-usher").rpartition("/")[2]],
            "verbs": ["get", "update"],
        },
        {
            "apiGroups": ["storage.k8s.io"],
            "resources": ["csistoragecapacities"],
            "resourceNames": [wake_path("gpu-usher").rpartition("/")[2]],
            "verbs": ["patch"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [LAST_GOOD], "verbs": ["get", "patch"]},
    ]
    assert {name for rule in rules if rule not in writing for name in rule["resources"]} == {
        plural for (_, kind), plural in STEPS.items() if kind != "Pod"
    }


def test_every_mount_of_the_policies_is_optional() -> None:
    """F76: a replica that starts while the ConfigMap is gone serves the last good policies."""
    texts = [file.read_text("utf-8") for file in DEPLOY.rglob("deployment.yaml")]
    deployments = [document for text in texts for document in yaml.safe_load_all(text)]
    volumes = [
        volume for document in deployments for volume in document["spec"]["template"]["spec"].get("volumes") or ()
    ]
    mounted = [volume["configMap"] for volume in volumes if volume.get("configMap", {}).get("name") == MOUNTED]

    assert len(mounted) >= 2
    assert all(source == {"name": MOUNTED, "optional": True} for source in mounted)


def test_edits_of_the_mounted_config_map_and_of_labelled_ones_are_asked_about() -> None:
    """F131: the names in the manifests are those in the code; no label decides about the mounted ConfigMap."""
    webhook = webhooks()["policies.gpu-usher.io"]
    (condition,) = webhook["matchConditions"]
    last_good = documents("components", "events", "last-good.yaml")[0]["metadata"]

    assert f"request.name == '{MOUNTED}'" in condition["expression"]
    assert f"object.metadata.labels['{POLICY_LABEL}'] == '{POLICY_LABEL_VALUE}'" in condition["expression"]
    assert "objectSelector" not in webhook
    assert (last_good["name"], last_good["labels"][POLICY_LABEL]) == (LAST_GOOD, LAST_GOOD_LABEL_VALUE)


def test_shipped_policies_name_the_version_that_reads_them() -> None:
    """F131: an edit that leaves the version as it is, is checked (app/api/admission_routes.py)."""
    kustomization = yaml.safe_load((DEPLOY.parent / "policies" / "Kustomization").read_text("utf-8"))

    assert kustomization["configMapGenerator"][0]["options"]["annotations"] == {VERSION: __version__}


def test_no_other_role_of_ours_may_write_events() -> None:
    """F104, AUD-01, AUD-02, AUD-03: the API server's audit log and kube-scheduler's own events record our decisions."""
    texts = [file.read_text("utf-8") for file in DEPLOY.rglob("rbac.yaml") if file.parent.name != "events"]
    rbac_objects = [document for text in texts for document in yaml.safe_load_all(text)]
    roles = [document for document in rbac_objects if document["kind"] in ("Role", "ClusterRole")]

    assert len(roles) >= 4
    assert not [rule for role in roles for rule in role["rules"] if {"events", "*"} & set(rule["resources"])]


def test_the_keeper_of_certificates_may_write_its_own_objects_by_name_and_nothing_else() -> None:
    """P50, F104: the verbs in deploy/ are those that the client uses (docs/reference/listeners.md#identities)."""
    names = Names()
    rules = [
        rule for document in documents("components", "self-signed", "rbac.yaml") for rule in document.get("rules", [])
    ]
    allowed = {
        (resource, name): set(rule["verbs"])
        for rule in rules
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    brought = {
        (f"{document['kind'].lower()}s", document["metadata"]["name"])
        for document in documents("components", "self-signed", "objects.yaml")
    }

    written = {tuple(path.split("/")[-2:]) for path in (names.secret("ca"), names.secret("tls"))}
    patched = {tuple(path.split("/")[-2:]) for path in names.places}
    assert allowed == {**{key: {"get", "update"} for key in written}, **{key: {"get", "patch"} for key in patched}}
    assert brought == written


def test_the_keeper_knows_every_webhook_configuration() -> None:
    """ADM-10: the API server would never trust a webhook whose configuration the controller does not know."""
    kinds = {"MutatingWebhookConfiguration": "mutating", "ValidatingWebhookConfiguration": "validating"}
    deployed = {
        f"{kinds[document['kind']]}webhookconfigurations/{document['metadata']['name']}"
        for parts in WEBHOOKS
        for document in documents(*parts)
    }

    assert {path.removeprefix(REGISTRATION) for path in Names().places} - {API_SERVICE} == deployed

# SPDX-License-Identifier: Apache-2.0
"""The manual pages of `--help`: what each verb reads, examples, when it exits with 1, and related verbs.

A verb's docstring says what it does, its options have their own help, and environment variables are taken from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManualPage:
    """The page of one verb.

    `fails` is the meaning of exit code 1, empty if there is none. `environment` are variables of other software.
    """

    reads: str
    examples: tuple[str, ...]
    fails: str = ""
    see: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


FLEET = "The fleet: of --snapshot, a file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`; of "
FLEET += "--kubeconfig, a live cluster, by list only, with its DRA objects; or of --demo-fleet. Writes nothing."
OR_KUBECTLS = " Where none is named, it is the cluster of kubectl (KUBECONFIG, else ~/.kube/config)."
POLICIES = (
    " Policies: the *.yaml of --policies, else those of ConfigMap gpu-usher/gpu-usher-policies, else the shipped "
)
POLICIES += "ones; and what else the fleet keeps in labelled ConfigMaps and GPUPolicy objects."
SHIPPED = " Policies: the *.yaml of --policies, else the shipped ones."

MANUAL: Mapping[str, ManualPage] = {
    "serve": ManualPage(
        "A live cluster (list and watch; the pod's service account, or --kubeconfig), a snapshot or the demo fleet; "
        "the policies' directory, which is watched. Writes certificates into --certs, and nothing to the cluster.",
        (
            "gpu-usher serve --demo",
            "gpu-usher serve --snapshot now.json --policies policies/ --port 9443",
            "gpu-usher serve --kubeconfig ~/.kube/config --role admission --shadow",
        ),
        see=("explain", "scheduler-config"),
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "where --tracing sends to"},
    ),
    "explain": ManualPage(
        "A pod or a workload: of the fleet by name, or those of the file -f. The fleet: of a live cluster "
        "(--kubeconfig, else that of kubectl; with its volumes, DRA objects and policies as far as they may be read), "
        "of --snapshot, of --demo, "
        "or of a running service (--url, which needs no rights in the cluster). Writes nothing." + POLICIES,
        (
            "gpu-usher explain pod/train-0 -n team-a",
            "gpu-usher explain deployment/train -n team-a",
            "gpu-usher explain -f pod.yaml --demo -o wide",
            "gpu-usher explain team-a/train-0 --url http://127.0.0.1:8081",
        ),
        "no node fits now",
        ("mutate", "doctor", "plan node-template"),
    ),
    "doctor": ManualPage(
        "Nodes and their pods; of a live cluster (--kubeconfig, else that of kubectl) also webhook configurations, "
        "certificates, the scheduler's configuration, RBAC, policies and GPU pods; GPU health of --prometheus or "
        "--dcgm-exporters. Writes nothing.",
        (
            "gpu-usher doctor --kubeconfig ~/.kube/config",
            "gpu-usher doctor --snapshot now.json --strict",
            "gpu-usher doctor --demo-fleet sick -o json",
        ),
        "something hurts pods now; with --strict, also where there is advice",
        ("explain", "inventory", "scheduler-config", "certs show"),
    ),
    "inventory": ManualPage(
        FLEET + OR_KUBECTLS,
        (
            "gpu-usher inventory --demo-fleet mixed",
            "gpu-usher inventory --snapshot now.json -o yaml",
            "gpu-usher inventory --kubeconfig ~/.kube/config --watch",
        ),
        see=("doctor", "plan mig"),
    ),
    "mutate": ManualPage(
        "The objects of -f. " + FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher mutate -f pod.yaml --demo --diff",
            "gpu-usher mutate -f train.yaml --snapshot now.json -o json",
            "gpu-usher mutate -f train.yaml --kubeconfig ~/.kube/config --policies policies/ | kubectl apply -f -",
        ),
        "an object is denied",
        ("explain", "policy diff"),
    ),
    "policy diff": ManualPage(
        "Two directories of policies, all that is compared; with --decisions a log of `serve --decision-log`, and then "
        "no fleet is needed. " + FLEET + OR_KUBECTLS,
        (
            "gpu-usher policy diff policies/ edited/ --snapshot now.json",
            "gpu-usher policy diff policies/ edited/ --demo-fleet mixed --limit 3",
            "gpu-usher policy diff policies/ edited/ --decisions decisions.log -o json",
        ),
        "the edit hurts: a pod is newly refused, or left without any node",
        ("policy lint", "policy test", "policy replay"),
    ),
    "policy replay": ManualPage(
        "Logs of `serve --decision-log`, the oldest first; the fleet as it was when they began. Writes nothing."
        + SHIPPED,
        (
            "gpu-usher policy replay decisions.log --snapshot now.json --policies edited/ -o json",
            "gpu-usher policy replay decisions.log --demo-fleet mixed --recount",
        ),
        "a decision differs",
        ("policy diff", "serve"),
    ),
    "usage": ManualPage(
        "A Prometheus (--prometheus) with the metrics of DCGM exporters, by range queries of limited size; with "
        "--snapshot or --kubeconfig also a fleet, for the owners of pods and the nodes that share GPUs; --prices, a "
        "file. Or a sample fleet with a made-up history (--demo). Writes nothing.",
        (
            "gpu-usher usage --demo --by product",
            "gpu-usher usage --prometheus http://127.0.0.1:9090 --by owner --since 4w",
            "gpu-usher usage --prometheus http://127.0.0.1:9090 --prices prices.yaml -o json",
        ),
        see=("inventory", "doctor"),
    ),
    "policy lint": ManualPage(
        "The *.yaml of a directory and of cases/ below it; the shipped ones without one.",
        ("gpu-usher policy lint policies/", "gpu-usher policy lint"),
        "there are findings",
        ("policy test", "schema", "policy diff"),
    ),
    "policy test": ManualPage(
        "The policies of a directory, and cases/ below it; no cluster.",
        ("gpu-usher policy test policies/", "gpu-usher policy test policies/ -o junit > cases.xml"),
        "a case does not hold",
        ("policy lint", "policy diff"),
    ),
    "schema": ManualPage(
        "Nothing: it prints what the models that read policies and write answers define.",
        (
            "gpu-usher schema > policies/schema/gpupolicy.json",
            "gpu-usher schema --crd | kubectl apply -f -",
            "gpu-usher schema --answer plan-driver",
        ),
        see=("policy lint", "export admission-policies"),
    ),
    "scheduler-config": ManualPage(
        "The CA of our certificate; for the resources a snapshot, a cluster or the demo fleet, else every resource "
        "that is known; with --verify a KubeSchedulerConfiguration. Writes nothing: the configuration is on stdout.",
        (
            "gpu-usher scheduler-config --ca certs/ca.crt > scheduler.yaml",
            "gpu-usher scheduler-config --verify scheduler.yaml --snapshot now.json",
            "gpu-usher scheduler-config --for default --ca certs/ca.crt --kubeconfig ~/.kube/config",
        ),
        "with --verify, something is dangerous or worth a warning",
        ("doctor", "serve"),
    ),
    "certs issue": ManualPage(
        "The directory --certs. Writes ca.crt, tls.crt and tls.key there, unless it has valid ones that are not due "
        "for renewal.",
        ("gpu-usher certs issue", "gpu-usher certs issue --certs certs --name gpu-usher.example.com -o json"),
        see=("certs show", "certs rotate"),
    ),
    "certs rotate": ManualPage(
        "Writes: a new CA into the directory --certs, or an annotation on the Secret of the CA, which asks the "
        "cluster's `certs controller` to begin.",
        ("gpu-usher certs rotate --certs certs", "gpu-usher certs rotate --kubeconfig ~/.kube/config"),
        see=("certs show", "certs controller"),
    ),
    "certs show": ManualPage(
        "A directory, a Secret (--secret) or an address (--url), one of them. Writes nothing.",
        (
            "gpu-usher certs show",
            "gpu-usher certs show --url https://127.0.0.1:8443 --ca certs/ca.crt",
            "gpu-usher certs show --secret gpu-usher-tls --kubeconfig ~/.kube/config -o json",
        ),
        "it is expired, not yet valid, or does not belong to its key, its CA or the name asked for",
        ("doctor", "certs rotate"),
    ),
    "certs controller": ManualPage(
        "Reads and writes its own Lease and Secrets by name, and the caBundle of our webhook configurations. Runs "
        "until SIGTERM.",
        ("gpu-usher certs controller", "gpu-usher certs controller --kubeconfig ~/.kube/config --name 127.0.0.1"),
        see=("certs rotate", "certs show"),
    ),
    "export admission-policies": ManualPage(
        "Nothing but policies." + SHIPPED,
        (
            "gpu-usher export admission-policies",
            "gpu-usher export admission-policies --policies policies/ | kubectl apply --server-side -f -",
        ),
        see=("schema",),
    ),
    "plan claim-templates": ManualPage(
        "The objects of -f, or the fleet without it. " + FLEET + POLICIES,
        (
            "gpu-usher plan claim-templates --snapshot now.json | kubectl apply -f -",
            "gpu-usher plan claim-templates -f pod.yaml -n team-a",
        ),
        see=("plan claims", "mutate"),
    ),
    "claims-controller": ManualPage(
        "A live cluster, by list only, with its DRA objects and the policies. Creates ResourceClaimTemplates where its "
        "account may (deploy/components/claim-templates). Runs until SIGTERM.",
        (
            "gpu-usher claims-controller --kubeconfig ~/.kube/config",
            "gpu-usher claims-controller --kubeconfig ~/.kube/config --turn-seconds 5 --probe-port 8080",
        ),
        see=("plan claim-templates", "plan claims"),
    ),
    "plan driver": ManualPage(
        FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher plan driver --nodes nvidia.com/gpu.product=Tesla-T4 --to 580.65.06 --snapshot now.json",
            "gpu-usher plan driver --to 535.104.05 --demo-fleet mixed -o json",
        ),
        "pods are left that no node of the fleet could serve",
        ("plan relayout", "explain"),
    ),
    "plan relayout": ManualPage(
        FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher plan relayout --nodes nvidia.com/mig.capable=true --layout all-1g.10gb --snapshot now.json",
            "gpu-usher plan relayout --layout 3g.40gb:2 --demo-fleet mixed -o yaml",
        ),
        "a node cannot have the layout",
        ("plan mig", "plan driver"),
    ),
    "plan claims": ManualPage(
        FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher plan claims --nodes nvidia.com/gpu.product=Tesla-T4 --snapshot now.json",
            "gpu-usher plan claims --demo-fleet weekday -o json",
        ),
        "a node cannot move, as pods on it have no equivalent claim",
        ("plan claim-templates", "explain"),
    ),
    "plan node-template": ManualPage(
        "The one Pod or workload of -f; a fleet is not needed. " + FLEET + POLICIES,
        (
            "gpu-usher plan node-template -f pod.yaml",
            "gpu-usher plan node-template -f train.yaml --policies policies/ -o json",
        ),
        "no GPU product fits",
        ("explain", "mutate"),
    ),
    "plan mig": ManualPage(
        FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher plan mig --snapshot now.json > mig-parted-config.yaml",
            "gpu-usher plan mig --demo-fleet mig",
            "gpu-usher plan mig --nodes pool=mig --kubeconfig ~/.kube/config -o json",
        ),
        "pods stay without a slice",
        ("plan relayout", "inventory"),
    ),
    "plan right-size": ManualPage(
        "A Prometheus with the metrics of DCGM exporters; --prices, a file. " + FLEET + OR_KUBECTLS + POLICIES,
        (
            "gpu-usher plan right-size --demo-fleet weekday",
            "gpu-usher plan right-size --prometheus http://127.0.0.1:9090 --since 4w --prices prices.yaml",
        ),
        see=("usage", "plan mig"),
    ),
    "plan repack": ManualPage(
        FLEET
        + " PodDisruptionBudgets and volumes count where they are in it (kubectl get pdb,pv,pvc)."
        + OR_KUBECTLS
        + POLICIES,
        (
            "gpu-usher plan repack --free places --snapshot now.json",
            "gpu-usher plan repack --free node --nodes pool=a100 --moves 3 --kubeconfig ~/.kube/config -o json",
            "gpu-usher plan repack --demo-fleet weekday",
        ),
        "nothing of the kind can be freed, or a pod that waits finds no place",
        ("explain", "plan mig"),
    ),
}
"""Pages by the words of the verb."""

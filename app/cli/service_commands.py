# SPDX-License-Identifier: Apache-2.0
"""The command lines of the verbs about policies, the scheduler, certificates and our processes: options and help.

What a verb does is in the module that `VERBS` names (verbs.py); it takes the options under the same names.
"""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import (
    FORMATS,
    ClusterOptions,
    DemoFleet,
    Fleet,
    Output,
    OwnNamespace,
    Policies,
    ProbePort,
    Snapshots,
    output_of,
)
from app.settings import Settings

SCHEMAS = Path(__file__).with_name("schemas")
"""The JSON Schemas of answers, by the words of the command joined with `-`, or by route."""
Logs = Annotated[list[Path], typer.Argument(help="Files of serve --decision-log, the oldest first.")]
Folder = Annotated[Path, typer.Option("--certs", help="Directory with ca.crt, tls.crt, tls.key.")]


def answers() -> list[str]:
    return sorted(path.stem for path in SCHEMAS.glob("*.json"))


def serve(*, settings: Settings) -> None:
    """Serve admission and scheduling: for the live cluster, the demo fleet or a snapshot."""


def policy_lint(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies, or one file; the shipped ones by default.")
    ] = None,
    output: Output = "text",
) -> None:
    """Check every policy and case of a directory; each finding is one line: file:line:column: what, remedy."""


def policy_test(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies, with cases/ below it; the shipped ones by default.")
    ] = None,
    output: Annotated[str, output_of(*FORMATS, "junit")] = "text",
) -> None:
    """Run the policy cases, each a pod, some nodes and the expected result, and name the rules without a case."""


def policy_diff(
    *,
    old: Annotated[Path, typer.Argument(help="Directory of the policies as they are, or manifests with them.")],
    new: Annotated[Path, typer.Argument(help="The same as they would be; - is stdin.")],
    fleet: Fleet,
    decisions: Annotated[
        list[Path] | None, typer.Option(help="Try the requests of a decision log instead of the pods that are there.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Pods shown by name for each change.")] = 10,
    output: Output = "text",
) -> None:
    """Show for which pods an edit of policies changes anything, before it is applied; exit 1 if it hurts a pod.

    Every unfinished pod of the fleet is tried as if it were created again, under the old and the new policies. Shown
    are pods that are newly refused, left without any node (both exit 1), newly admitted, moved to another best node, on
    fewer or more nodes, or changed otherwise. A running pod first frees its own place. What old policies wrote into a
    running pod (affinity, runtimeClassName) stays in it, and only GPUs are judged; taints, CPU and memory are left to
    the scheduler.

    Instead of a directory, a file of manifests may be given, of which ConfigMap gpu-usher-policies and GPUPolicy
    objects count. To see what an overlay would deny in a cluster before it is applied: kubectl kustomize
    deploy/overlays/production | gpu-usher policy diff policies - --kubeconfig FILE

    With --decisions the recorded requests are tried instead; best nodes are compared only if a fleet is given too.
    """


def policy_replay(
    logs: Logs,
    snapshot: Snapshots = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    recount: Annotated[bool, typer.Option(help="As the service that wrote the log: serve --recount.")] = False,
    filter_answer: Annotated[
        str, typer.Option(help="As the service that wrote the log: all or shortlist.")
    ] = "shortlist",
    output: Output = "text",
) -> None:
    """Decide every line of a decision log again, and show the decisions that differ; exit 1 if any does.

    The fleet is that of the snapshot: one taken when the log began shows what other policies, or another version of
    gpu-usher, would have decided. For a log of `serve --demo` or `--snapshot` give --recount. Lines are decided in
    their order, because memory of shared GPUs is promised from one to the next.
    """


def export_admission_policies(policies: Policies = None) -> None:
    """Write policies that the API server evaluates itself, which guard devices while gpu-usher does not answer.

    A ValidatingAdmissionPolicy refuses pods that take GPUs which they did not request, and privileged ones; a
    MutatingAdmissionPolicy (Kubernetes 1.36 and newer) copies requests of GPUs to limits. Both only where the policies
    enforce it for every pod. All other rules are left to gpu-usher.
    """


def schema(
    crd: bool = typer.Option(False, "--crd", help="Print the CustomResourceDefinition, as YAML, instead."),
    conditions: bool = typer.Option(
        False, "--match-conditions", help="Print the matchConditions of the webhooks, as YAML, instead."
    ),
    resource: Annotated[
        list[str] | None,
        typer.Option(help="With --match-conditions: an extendedResourceName of a DeviceClass here; may be repeated."),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help=f"Print the JSON Schema of what a command or route answers instead: {', '.join(answers())}.",
            autocompletion=answers,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of GPUPolicy documents, for editors, or another text generated from the same models."""


def scheduler_config(
    *,
    target: Annotated[str, typer.Option("--for", help="second (its own scheduler) or default (kubeadm's).")] = "second",
    filter_answer: Annotated[
        str, typer.Option(help="As serve --filter-answer: all or shortlist; prioritize is called for all alone.")
    ] = "shortlist",
    every_pod: Annotated[
        bool,
        typer.Option("--every-pod", help="Keep pods without GPU off untainted GPU nodes, by a second extender."),
    ] = False,
    extender: Annotated[
        bool,
        typer.Option("--extender/--no-extender", help="Without: kube-scheduler packs GPU pods by itself."),
    ] = True,
    url: Annotated[str | None, typer.Option(help="Where the scheduler finds us; a sidecar or our Service.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="CA that signed our certificate; by default certs/ca.crt, if the URL is https.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="Instead of --ca: where the scheduler itself finds the CA.")
    ] = None,
    fleet: Fleet,
    check: Annotated[Path | None, typer.Option("--verify", help="Check this file instead of writing one.")] = None,
    output: Output = "text",
) -> None:
    """Write the scheduler's configuration, with the reason of every field, or check an existing one."""


def certs_issue(
    *,
    folder: Folder = Path("certs"),
    name: Annotated[list[str] | None, typer.Option(help="DNS name or address besides those of the Service.")] = None,
    namespace: OwnNamespace = "gpu-usher",
    service: Annotated[str, typer.Option(help="Name of the Service.")] = "gpu-usher",
    output: Output = "text",
) -> None:
    """Issue a CA and a certificate in a directory, unless those there are valid and not due for renewal."""


def certs_rotate(
    *,
    folder: Annotated[Path | None, typer.Option("--certs", help="Rotate in a directory, not in a cluster.")] = None,
    cluster: ClusterOptions,
    namespace: OwnNamespace = "gpu-usher",
) -> None:
    """Make a new CA now: both are trusted, after a minute the new one signs, after a week the old one is dropped."""


def certs_show(
    *,
    folder: Annotated[
        Path | None, typer.Option("--certs", help="Directory with ca.crt and tls.crt; certs by default.")
    ] = None,
    secret: Annotated[str | None, typer.Option(help="A Secret of the namespace, such as gpu-usher-tls.")] = None,
    url: Annotated[str | None, typer.Option(help="An https address; --ca names the trusted CAs.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CAs that clients trust; else the ca.crt beside it.")] = None,
    cluster: ClusterOptions,
    namespace: OwnNamespace = "gpu-usher",
    output: Output = "text",
) -> None:
    """Show dates, names and signer of a directory, a Secret or an address; exit 1 if expired or mismatched."""


def certs_controller(
    *,
    cluster: ClusterOptions,
    namespace: OwnNamespace = "gpu-usher",
    service: Annotated[str, typer.Option(help="Name of the Service that the webhooks call.")] = "gpu-usher",
    name: Annotated[
        list[str] | None, typer.Option(help="Another name or address, such as 127.0.0.1 of a sidecar.")
    ] = None,
    wait_seconds: Annotated[float, typer.Option(help="How long a new CA is published before it signs.")] = 60.0,
    probe_port: ProbePort = None,
) -> None:
    """Keep the CA, the certificate and the webhooks' caBundle of a cluster."""


def claims_controller(
    *,
    cluster: ClusterOptions,
    policies: Policies = None,
    turn_seconds: Annotated[float, typer.Option(help="Seconds between two readings of the cluster.")] = 30.0,
    probe_port: ProbePort = None,
) -> None:
    """Make the ResourceClaimTemplates that pods need where a policy has admission.convertToClaims.

    It makes templates in the namespaces where its account may, and changes and deletes nothing. The first pods of a
    workload are admitted as they are, and those that are created after its template claim.
    """

# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher export`: writes as YAML what the API server can validate alone, and the templates of claims for pods."""

from typing import Annotated

import typer
import yaml

from app import __version__
from app.admission.fallback_policy import LIMITATIONS, fallback_policies
from app.cli.claim_templates import templates_for
from app.cli.help import verb_group
from app.cli.mutate import read_file
from app.cli.records import command
from app.cli.source import Fleet, Namespace, Policies, policies_in, state_of
from app.cluster.files import read_knowledge, shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.policy.match import ruling_for
from app.telemetry.logs import today

export = verb_group("Export configuration that lets other components do part of the work.")
ANY_POD = {"metadata": {"name": "any"}, "spec": {"containers": [{"name": "any"}]}}


@command(export)
def vap(policies: Policies = None) -> None:
    """Write a ValidatingAdmissionPolicy that refuses the worst GPU pods while gpu-usher is down.

    It enforces what the policies enforce for a pod that matches no selector; a second policy warns of what they only
    warn of. While gpu-usher is up it changes nothing, because mutating webhooks come first. Install it beside the
    webhooks if their failurePolicy is Ignore. What CEL cannot express is listed at the top of the file.
    """
    knowledge = read_knowledge()
    book = PolicyBook(policies or shipped_policies(), knowledge, today)
    print(vap_text(book.current, knowledge), end="")


def vap_text(policies: PolicySet, knowledge: Knowledge) -> str:
    """Return the policies and bindings as YAML, below a list of what they cannot express."""
    ruling = ruling_for(read_pod(ANY_POD), {}, policies, knowledge)
    documents = fallback_policies(ruling.enforced, ruling.warned, knowledge)
    head = [
        f"# Made by `gpu-usher export vap` of gpu-usher {__version__}, policies {policies.hash[:12]}.",
        "# It cannot:",
    ]
    head += [f"# - {limitation};" for limitation in LIMITATIONS]
    return "\n".join(head) + "\n" + yaml.safe_dump_all(documents, sort_keys=False, width=120)


@command(export, "claim-templates")
def claim_templates(
    *,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="YAML or JSON of Pods and workloads; - is stdin."),
    ] = None,
    fleet: Fleet,
    policies: Policies = None,
    namespace: Namespace = None,
) -> None:
    """Write the ResourceClaimTemplates with which GPU pods claim their GPUs through DRA, for kubectl apply.

    They are for the Pods and workloads of the files, or without files for those of the fleet. The policy field
    admission.convertToClaims has admission use them. Their names depend on their content alone: pods of one namespace
    with equal needs share one, and writing them again changes nothing. Pods that have no equivalent are comments.
    """
    where = fleet.namespace(namespace, default=not files)
    objects = fleet.read(needs_nodes=False) if fleet.given or not files else []
    state = state_of(objects)
    asking = [document for file in files or () for document in read_file(file)] if files else objects
    templates = templates_for(asking, where, state, policies_in(objects, policies, state))
    print(templates.text(state.devices.claim_templates.served_version), end="")

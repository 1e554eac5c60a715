# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher export vap`: writes the part of our validation that the API server can do alone, as YAML for kubectl."""

import typer
import yaml

from app import __version__
from app.admission.fallback_policy import LIMITATIONS, fallback_policies
from app.cli.help import Verb, VerbGroup
from app.cli.source import Policies
from app.cluster.files import read_knowledge, shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.policy.match import ruling_for
from app.telemetry.clock import today

export = typer.Typer(
    help="Write configuration with which other components do part of our work.", no_args_is_help=True, cls=VerbGroup
)
ANY_POD = {"metadata": {"name": "any"}, "spec": {"containers": [{"name": "any"}]}}


@export.callback()
def _group() -> None:
    """Write configuration with which other components do part of our work."""


@export.command(cls=Verb)
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

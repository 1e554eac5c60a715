# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher export`: the policies in force as admission policies that the API server evaluates itself.

A module of its own, as `policy lint` starts in half the time without what this one imports (tests/cli/test_start.py).
"""

import yaml

from app import __version__
from app.admission.admission_policies import LIMITATIONS, validating_policies
from app.admission.fallback_scope import fallback_scope
from app.admission.mutating_policies import LEFT_OUT, mutating_policies
from app.cli.source import Policies
from app.cluster.files import read_knowledge, shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.knowledge.tables import Knowledge
from app.policy.compiled import PolicySet
from app.telemetry.logs import today


def admission_policies(policies: Policies = None) -> None:
    """Write policies that the API server evaluates itself, so that GPU pods are repaired and guarded without gpu-usher.

    A MutatingAdmissionPolicy (Kubernetes 1.36 and newer) repairs pods and a ValidatingAdmissionPolicy refuses them, by
    what the policies enforce for a pod that matches no selector; another one warns of what they only warn of. They are
    evaluated before gpu-usher is asked, and it adds what they lack. What CEL cannot express is listed at the top of the
    file, with the cause.
    """
    knowledge = read_knowledge()
    book = PolicyBook(policies or shipped_policies(), knowledge, today)
    print(admission_policies_text(book.current, knowledge), end="")


def admission_policies_text(policies: PolicySet, knowledge: Knowledge) -> str:
    """Return the policies and bindings as YAML, below a list of what they cannot express."""
    scope = fallback_scope(policies, knowledge)
    documents = [*mutating_policies(scope, knowledge), *validating_policies(scope, knowledge)]
    head = [
        f"# Made by `gpu-usher export admission-policies` of gpu-usher {__version__}, policies {policies.hash[:12]}.",
        "# Rules that are left to gpu-usher:",
        *(f"# - {row.name}: {row.cause};" for row in LEFT_OUT if row.is_in_force(scope.enforced)),
        *(f"# - {', '.join(fields)}: for pods that policy {policy} selects;" for policy, fields in scope.exceptions()),
        "# It cannot:",
        *(f"# - {limitation};" for limitation in LIMITATIONS),
    ]
    return "\n".join(head) + "\n" + yaml.safe_dump_all(documents, sort_keys=False, width=120)

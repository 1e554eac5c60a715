# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.deploy.exemptions` makes deploy/base/exemptions.yaml: the policy on who may exempt namespaces."""

import yaml

from app.admission.admission_policies import exemption_policy
from app.cluster.files import read_knowledge

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `python -m tests.deploy.exemptions > deploy/base/exemptions.yaml`.
# Only who may create exemptions.gpu-usher.io exempts a namespace, by our labels or by an exempt name. cluster-admin
# may; to others it is given by a ClusterRole and a ClusterRoleBinding with the rule
#   {apiGroups: [gpu-usher.io], resources: [exemptions], verbs: [create]}
"""


def exemptions_text() -> str:
    """Return the policy on who may exempt namespaces, as deploy/base/exemptions.yaml stores it (F21)."""
    documents = exemption_policy(read_knowledge().families)
    return HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=120)


if __name__ == "__main__":
    print(exemptions_text(), end="")

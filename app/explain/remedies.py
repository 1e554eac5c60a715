# SPDX-License-Identifier: Apache-2.0
"""All remedies: small edits that may let a pod run. A remedy only proposes an edit; `counterfactual.py` proves it."""

from app.explain.edits import Remedy
from app.explain.remedies_existing_pods import EXISTING_PODS
from app.explain.remedies_gpu import GPU
from app.explain.remedies_in_tree import IN_TREE
from app.explain.remedies_policy import POLICY

REMEDIES: tuple[Remedy, ...] = (*IN_TREE, *EXISTING_PODS, *GPU, *POLICY)

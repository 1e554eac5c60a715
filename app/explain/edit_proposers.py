# SPDX-License-Identifier: Apache-2.0
"""All functions that propose small edits by which a pod may get a node; `counterfactual.py` proves which of them do."""

from app.explain.edits import EditProposer
from app.explain.edits_existing_pods import EXISTING_PODS
from app.explain.edits_gpu import GPU
from app.explain.edits_in_tree import IN_TREE
from app.explain.edits_policy import POLICY

EDIT_PROPOSERS: tuple[EditProposer, ...] = (*IN_TREE, *EXISTING_PODS, *GPU, *POLICY)

# SPDX-License-Identifier: Apache-2.0
"""Node affinity: needs in the words of node labels, terms, and the mutator that writes them."""

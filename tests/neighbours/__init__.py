# SPDX-License-Identifier: Apache-2.0
"""Programs that stand beside gpu-usher in a cluster, from upstream's Go modules."""

# SPDX-License-Identifier: Apache-2.0
"""Node affinity: a pod's needs as label expressions, their terms, and the operations that write them into a pod."""

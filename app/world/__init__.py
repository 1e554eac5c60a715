# SPDX-License-Identifier: Apache-2.0
"""The world: nodes, devices, pods and policies as last seen, and what follows from them; no I/O."""

# SPDX-License-Identifier: Apache-2.0
"""How the GPUs that pods hold were used over time: series in, tables and advice out."""

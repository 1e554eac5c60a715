# SPDX-License-Identifier: Apache-2.0
"""Situations that people reported in public, rebuilt as nodes and pods, with what gpu-usher has to say of each."""

# SPDX-License-Identifier: Apache-2.0
"""gpu-usher: GPU pods corrected at admission and placed on a node with the right GPU at scheduling."""

__version__ = "0.2.0"

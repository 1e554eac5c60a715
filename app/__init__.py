# SPDX-License-Identifier: Apache-2.0
"""gpu-usher: GPU pods made correct at admission and seated on the right GPU at scheduling."""

__version__ = "0.1.0"

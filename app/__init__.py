# SPDX-License-Identifier: Apache-2.0
"""gpu-usher: GPU pods made correct at admission and seated on the right GPU at scheduling.

Ids in docstrings, such as F12, P7, HA-04 and fault 24, are rows of the tables that docs/reference/README.md names.
"""

__version__ = "0.1.0"

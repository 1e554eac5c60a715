# SPDX-License-Identifier: Apache-2.0
"""The difference of two JSON documents as a JSON Patch."""

from collections.abc import Iterator
from typing import Any

from app.admission.json_patch import Operation


def difference(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[Operation]:
    """List the operations that turn one document into another; lists of different length are replaced as a whole.

    Added members that are empty are left out, since `edited` adds such members before an edit.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            if key not in after:
                yield Operation("remove", (*path, key))
            elif key in before:
                yield from difference(before[key], after[key], (*path, key))
            elif after[key] not in ([], {}):
                yield Operation("add", (*path, key), after[key])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from difference(one, other, (*path, str(index)))
    elif before != after and (before is not None or after not in ([], {})):
        yield Operation("replace", path, after)

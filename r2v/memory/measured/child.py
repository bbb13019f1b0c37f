"""Measuring process: one JSON line per case on standard input, one line with its result on standard output.

Started by `r2v.memory.store.Measuring`, so that planning commands never load torch themselves.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from r2v.errors import R2VError
from r2v.memory.measurement import MeasuredCase, as_values


def answer(request: MeasuredCase | dict[str, Any]) -> dict[str, Any]:
    """Return the measurement of a case, or the sizes of a model by its config.json, as JSON values. Raise UsageError if
    the model does not run on fake tensors."""
    from r2v.memory.measured.extrapolation import measure, sizes_of

    return as_values(measure(request)) if isinstance(request, MeasuredCase) else asdict(sizes_of(request))


def main() -> None:
    """Answer each line of standard input."""
    # Libraries print to standard output too: send that to standard error, and answers to a copy of the descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        values = json.loads(line)
        try:
            result = answer(MeasuredCase(**values["case"]) if "case" in values else values["model"])
        except R2VError as error:
            result = {"error": str(error)}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

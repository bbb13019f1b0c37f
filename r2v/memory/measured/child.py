"""The measuring process: a JSON line for each case on standard input, a line with its result on standard output.

`r2v.memory.store.Measuring` starts it, so that the commands that plan never load torch themselves.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from r2v.errors import R2VError
from r2v.memory.measurement import MeasuredCase, as_values


def answer(asked: MeasuredCase | dict[str, Any]) -> dict[str, Any]:
    """The measurement of a case, or the sizes of a model by its config.json, as JSON values. Raises UsageError where
    its model does not run on tensors without data."""
    from r2v.memory.measured.extrapolation import measure, sizes_of

    return as_values(measure(asked)) if isinstance(asked, MeasuredCase) else asdict(sizes_of(asked))


def main() -> None:
    """Answer line after line until standard input ends. What the libraries print goes to standard error."""
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

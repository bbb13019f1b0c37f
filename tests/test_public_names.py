"""The public library: its names and signatures equal those of public_names.txt.

python -m tests.test_public_names > tests/public_names.txt     # after an intended change that is in CHANGELOG
"""

from __future__ import annotations

import difflib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import r2v

PROMISED = Path(__file__).with_name("public_names.txt")


def signatures() -> Iterator[str]:
    """Yield a line for each public name and each public member of it."""
    for name in sorted(r2v.__all__):
        value = getattr(r2v, name)
        if not callable(value):
            yield f"{name}: {type(value).__name__}"
        elif not inspect.isclass(value):
            yield f"{name}{inspect.signature(value)}"
        else:
            shown = (
                ""
                if issubclass(value, Exception) or getattr(value, "_is_protocol", False)
                else inspect.signature(value)
            )
            yield f"{name}{shown}"
            for member, held in sorted(vars(value).items()):
                if member.startswith("_"):
                    continue
                held = getattr(value, member)
                if inspect.isfunction(held) or inspect.ismethod(held):
                    kind = "async " if inspect.iscoroutinefunction(held) else ""
                    yield f"    {kind}{member}{inspect.signature(held)}"
                elif isinstance(held, property) and held.fget is not None:
                    yield f"    {member}: {inspect.signature(held.fget).return_annotation}"


def test_names_and_signatures_are_those_that_are_promised() -> None:
    promised, actual = PROMISED.read_text().splitlines(), list(signatures())
    difference = "\n".join(difflib.unified_diff(promised, actual, "promised", "found", lineterm="", n=0))
    assert not difference, f"the public library changed:\n{difference}"


def test_importing_it_loads_nothing() -> None:
    code = "import sys, r2v; print(sorted(name for name in sys.modules if name.startswith(('r2v.', 'torch'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_name_is_refused_with_those_that_there_are() -> None:
    assert set(r2v.__all__) <= set(dir(r2v))
    with pytest.raises(AttributeError, match="no attribute 'Polcy'; it offers Benchmark, Bundle, "):
        r2v.__getattr__("Polcy")


if __name__ == "__main__":
    print("\n".join(signatures()))

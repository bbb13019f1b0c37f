"""Licences: every installed package states an allowed licence, and a forbidden one is named."""

from __future__ import annotations

import subprocess
import sys
from email.message import Message
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "licences.py"


@pytest.fixture(scope="module")
def licences() -> Any:
    """Return the script as a module."""
    loader = SourceFileLoader("licences", str(SCRIPT))
    spec = spec_from_loader("licences", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_installed_is_allowed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all allowed" in done.stdout and "tqdm (core): MPL-2.0 AND MIT" in done.stdout


@pytest.mark.parametrize(
    ("stated", "expression", "wrong"),
    [
        ({"License-Expression": "MIT AND (GPL-3.0-only OR Apache-2.0)"}, None, ["GPL-3.0-only"]),
        ({"License-Expression": "GPL-3.0-only OR MIT"}, None, []),
        ({"License": "LGPL"}, "LGPL", ["LGPL"]),
        ({"License": "Apache 2.0 License"}, "Apache-2.0", []),
        (
            {"License": "Copyright\nof somebody", "Classifier": "License :: OSI Approved :: BSD License"},
            "BSD-3-Clause",
            [],
        ),
        ({"Classifier": "License :: OSI Approved :: GNU Affero General Public License v3"}, None, None),
        ({}, "none stated", ["none stated"]),
    ],
    ids=lambda value: "",
)
def test_a_licence_is_read_and_what_is_not_allowed_is_named(
    licences: Any, stated: dict[str, str], expression: str | None, wrong: list[str] | None
) -> None:
    package = Message()
    for key, value in stated.items():
        package[key] = value
    licence = licences.licence(package)
    assert expression is None or licence == expression
    assert licences.refused(licence) == ([licence] if wrong is None else wrong)

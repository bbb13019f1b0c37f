"""The bill of materials: every locked package with its version and hashes, valid, and the same each time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import r2v

REPOSITORY = Path(__file__).parents[1]


def made(path: Path) -> str:
    """Return the output of scripts/sbom.py."""
    script = REPOSITORY / "scripts" / "sbom.py"
    subprocess.run([sys.executable, str(script), str(path)], check=True, cwd=REPOSITORY, capture_output=True)
    return path.read_text()


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return json.loads(made(tmp_path_factory.mktemp("bill") / "sbom.cdx.json"))


def test_it_is_valid_and_has_the_same_bytes_each_time(bill: dict[str, Any], tmp_path: Path) -> None:
    text = made(tmp_path / "again.json")
    assert json.loads(text) == bill
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_every_locked_package_stands_in_it_with_version_and_hashes(bill: dict[str, Any]) -> None:
    locked: dict[str, tuple[str, set[str]]] = {}
    for path in (REPOSITORY / "requirements").glob("*.txt"):
        package = ""
        if path.name == "torch-cpu.txt":  # its hashes are in core.txt as well
            continue
        for line in path.read_text().splitlines():
            if pin := re.match(r"([\w.-]+)==([^\s;]+)", line):
                package = pin[1]
                locked[package] = (pin[2], set())
            elif value := re.search(r"--hash=sha256:(\w{64})", line):
                locked[package][1].add(value[1])
    listed = {
        item["name"]: (item["version"], {entry["content"] for entry in item["externalReferences"][0]["hashes"]})
        for item in bill["components"]
    }
    assert listed == locked and len(listed) > 150
    assert all(item["purl"] == f"pkg:pypi/{item['name']}@{item['version']}" for item in bill["components"])


def test_it_is_of_this_release_and_tells_what_a_user_gets(bill: dict[str, Any]) -> None:
    own = bill["metadata"]["component"]
    assert (own["name"], own["version"]) == ("r2v", r2v.__version__)
    scopes = {item["name"]: item["scope"] for item in bill["components"]}
    assert (scopes["torch"], scopes["triton"], scopes["pytest"]) == ("required", "optional", "excluded")
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    assert any(ref.startswith("pkg:pypi/torch@") for ref in needs["r2v"])
    (transformers,) = (ref for ref in needs if ref.startswith("pkg:pypi/transformers@"))
    assert any(ref.startswith("pkg:pypi/tokenizers@") for ref in needs[transformers])

"""The repository's own files agree with each other: version, licence, addresses, Python versions, make targets."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import r2v
from r2v.cli.main import build_parser
from r2v.config import load

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.M))


def _yaml(name: str) -> Any:
    return yaml.safe_load((REPOSITORY / name).read_text())


def _steps() -> list[str]:
    steps = _yaml(".github/workflows/check.yml")["jobs"]["check"]["steps"]
    return [step["run"] for step in steps if "run" in step]


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = _yaml("CITATION.cff")
    assert citation["version"] == r2v.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"] == PROJECT["project"]["authors"]
    assert set(citation["keywords"]) == set(PROJECT["project"]["keywords"])


def test_one_address_of_the_repository() -> None:
    address = PROJECT["project"]["urls"]["Repository"]
    assert _yaml("CITATION.cff")["repository-code"] == address
    assert re.search(r"^repo_url: (.+)$", (REPOSITORY / "mkdocs.yml").read_text(), re.M)[1] == address
    others = [*PROJECT["project"]["urls"].values()]
    others += [link["url"] for link in _yaml(".github/ISSUE_TEMPLATE/config.yml")["contact_links"]]
    assert all(url == address or url.startswith(f"{address}/") for url in others)


def test_the_workflow_runs_make_targets_on_every_python_that_is_named() -> None:
    versions = _yaml(".github/workflows/check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert versions == classifiers and PROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert all(step.startswith("make ") for step in _steps())
    called = {word for step in _steps() for word in step.split()[1:] if "=" not in word}
    assert called <= TARGETS


def test_the_workflow_leaves_out_nothing_that_make_check_does() -> None:
    (needed,) = re.findall(r"^check: (.*?)(?:##.*)?$", (REPOSITORY / "Makefile").read_text(), re.M)
    called = {word for step in _steps() for word in step.split()[1:]}
    assert {target for target in needed.split() if not target.startswith(".")} <= called


def test_the_package_says_that_it_is_typed() -> None:
    assert (REPOSITORY / "r2v" / "py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["r2v"]


@pytest.mark.parametrize("name", ["run_all.sh", "run_model_comparison.sh"])
def test_a_script_at_the_root_is_the_one_in_its_folder(name: str) -> None:
    (folder,) = (path.parent for path in (REPOSITORY / "scripts").rglob(name))
    text = (REPOSITORY / name).read_text()
    assert f'/{folder.relative_to(REPOSITORY)}/{name}" "$@"' in text
    assert (REPOSITORY / name).stat().st_mode & 0o111


def test_the_container_recipe_copies_what_is_here_and_starts_a_command_that_there_is() -> None:
    """Neither podman nor docker builds it here; hadolint finds nothing in it."""
    recipe = (REPOSITORY / "Containerfile").read_text()
    lines = [line.split(maxsplit=1) for line in recipe.splitlines() if not line.startswith("#")]
    assert lines[0][0] == "FROM"
    assert {word for word, _ in lines} <= {"FROM", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT"}
    copied = {source for word, rest in lines if word == "COPY" for source in rest.split()[:-1]}
    assert all((REPOSITORY / source).exists() for source in copied)
    needed = {
        "pyproject.toml",
        "setup.py",
        "r2v",
        "configs",
        "scripts/slurm",
        "run_all.sh",
        PROJECT["project"]["readme"],
    }
    assert {*needed, PROJECT["project"]["readme"]} <= copied
    (extra,) = re.findall(r"'/src\[(\w+)\]'", recipe)
    assert extra in PROJECT["project"]["optional-dependencies"]
    (words,) = [json.loads(rest) for word, rest in lines if word == "ENTRYPOINT"]
    assert words.pop(0) in PROJECT["project"]["scripts"]
    arguments = build_parser().parse_args([*words, "--llm", "openai:gpt-6.1-terra"])
    assert load(overrides=arguments.overrides).serve.host == "0.0.0.0"

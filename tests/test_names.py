"""Names that a reader can look up: no name stands for two things, and every named file exists."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"

EVERYWHERE = {"STAGE", "CATEGORY"}
"""Constants that every module of a kind defines under the same name."""
FILE = re.compile(r"(?<![\w./{}<>$*-])(?:\./)?(?:[\w.-]+/)*[\w-]+\.(?:py|md|sh|toml|cff|ya?ml)\b(?![\w.*/{<(])")
MODULE = re.compile(r"(?<![\w./])r2v(?:\.(?!jsonl?\b|__)[a-zA-Z_]\w*)+")
MADE_LATER = {
    *(
        "config.yaml",
        "base.py",
        "base.yaml",
        "api/r2v.md",
        "spec.yaml",
        "configs/run_001.yaml",
        "job.sh",
        "reference.md",
        "site.yaml",
    ),
    "scripts/slurm/site.yaml",
    "outputs/router/logs_noisy/config.yaml",
}
"""Paths written by a run, a cluster setting or the build of the site: never in the repository."""
MADE_UP = {
    "r2v.data.gone",
    "ask.py",
    "config.toml",
    "mini.yaml",
    "routes.toml",
    "12_count_words.sh",
    "broken.py",
    "configs/BENCHMARK/CONDITION.yaml",
    "corridors.py",
    "my_answers.py",
    "my_gateway.py",
    "mychecks.py",
    "deep.py",
    "modeling_hostile.py",
    "near.py",
    "r2v.bash",
    "r2v.hrl.Archer",
    "r2v.stages.count_words",
    "r2v/stages/count_words.py",
    "r2v/x.py",
    "ruamel.yaml",
    "script.py",
    "own_parcels.py",
    "shop.py",
    "scripts/slurm/12_count_words.sh",
    "stamp.py",
    "test_job.py",
    "tests/data/test_x.py",
    "total.py",
    "../total.py",
    "a/total.py",
    "b/total.py",
    "judge.py",
    "a/judge.py",
    "b/judge.py",
    "runner.py",
}
"""Example names of pages, tests and benchmarks, and a package with the name of a file."""
HISTORY = {"docs/LOG.md", "CHANGELOG.md"}
"""Pages about files of the past."""


def constants(node: ast.stmt) -> Iterator[str]:
    """Yield the UPPER_CASE names that a statement of a module binds, without type variables."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        factory = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id.isupper() and factory not in ("TypeVar", "ParamSpec"):
                yield target.id


@cache
def modules() -> dict[str, ast.Module]:
    """Return the package's modules by their files."""
    return {path.relative_to(REPOSITORY).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def test_no_public_class_or_constant_stands_twice() -> None:
    places = defaultdict(list)
    for path, module in modules().items():
        for node in module.body:
            for name in [node.name] if isinstance(node, ast.ClassDef) else constants(node):
                if not name.startswith("_"):
                    places[name].append(path)
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in EVERYWHERE}
    assert twice == {}


def test_no_sentence_of_a_docstring_has_the_name_of_a_class_or_function_for_a_word() -> None:
    """A rename by search also changes sentences: "ProviderRequest each participant", "one request that is
    succeeded_row". A name of code stands in backticks, in an example, or behind "Raise"."""
    nodes = [(path, node) for path, module in modules().items() for node in ast.walk(module)]
    data = {node.arg for _, node in nodes if isinstance(node, ast.arg)}
    data |= {ast.unparse(node.target) for _, node in nodes if isinstance(node, ast.AnnAssign)}
    functions = {node.name for _, node in nodes if isinstance(node, ast.FunctionDef) and "_" in node.name} - data
    classes = {node.name for _, node in nodes if isinstance(node, ast.ClassDef)} - {"OpenAI", "TextWorld", "WebArena"}
    broken = []
    for path, node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (ast.get_docstring(node) or "").splitlines()
            prose = " ".join(re.sub("`[^`]*`", "", line) for line in lines if line[:1].strip() and "  " not in line)
            begins = re.match(r"([A-Z][a-z]+[A-Z]\w+) [a-z]", prose)
            words = re.findall(r"(?<![\w./:*=<(\[-])[a-z]+_[a-z_]+(?![\w(=./:\]>*])", prose)
            names = {begins[1]} & classes if begins else set()
            broken += [f"{path}: {name}" for name in {*names, *functions.intersection(words)}]
    assert broken == []


def tracked() -> list[str]:
    """Return the repository's own files, new ones too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [name for name in listed if (REPOSITORY / name).is_file()]


def texts() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each file that is written here and describes the present; the seeds' pages are
    quotations."""
    for name in tracked():
        written = Path(name).suffix in {".py", ".md", ".sh", ".toml", ".cff", ".yaml", ".yml", ".txt"}
        ours = name not in HISTORY and not name.startswith("tests/seeds/seed_")
        if ours and (written or name in ("Makefile", ".ci/run")):
            yield name, (REPOSITORY / name).read_text()


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_no_file_names_a_file_that_is_not_here() -> None:
    """By its whole path or the end of it. Tests make small configurations of their own, which are allowed."""
    ends = {"/".join(Path(name).parts[i:]) for name in tracked() for i in range(len(Path(name).parts))}
    absent = {
        f"{name}: {named}"
        for name, text in texts()
        for named in (word.removeprefix("./") for word in FILE.findall(text))
        if named not in ends | MADE_LATER | MADE_UP
        and not (name.startswith("tests/") and named.endswith((".yaml", ".sh")))
        and not (REPOSITORY / name).parent.joinpath(named).is_file()
    }
    assert absent == set()


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_no_file_names_a_module_that_is_not_here() -> None:
    absent = {
        f"{name}: {dotted}"
        for name, text in texts()
        for dotted in set(MODULE.findall(text)) - MADE_UP
        if not stands(dotted)
    }
    assert absent == set()


def stands(dotted: str) -> bool:
    """True if a dotted name is a module, or a word in the last module of its path."""
    folder = REPOSITORY
    for part in dotted.split("."):
        if (folder / f"{part}.py").is_file():
            return True
        if not (folder / part).is_dir():
            face = folder / "__init__.py"
            return face.is_file() and bool(re.search(rf"\b{part}\b", face.read_text()))
        folder /= part
    return True


def test_test_names_are_sentences() -> None:
    """No codes such as test_D11_: nothing in the repository defines them."""
    coded = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in (REPOSITORY / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.M)
        if re.match(r"test_[A-Z]\d*_|test_0\d_", name)
    ]
    assert coded == []

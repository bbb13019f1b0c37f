"""Names that a reader can look up: no name stands for two things, and nothing names what is not here."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"

EVERYWHERE = {"STAGE", "CATEGORY"}
"""What each module of a kind says of itself under the same name."""
FILE = re.compile(r"(?<![\w./{}<>$*-])(?:\./)?(?:[\w.-]+/)*[\w-]+\.(?:py|md|sh|toml|cff|ya?ml)\b(?![\w.*/{<(])")
MODULE = re.compile(r"(?<![\w./])r2v(?:\.(?!jsonl?\b|__)[a-zA-Z_]\w*)+")
MADE_LATER = {
    *(
        "config.yaml",
        "base.py",
        "base.yaml",
        "spec.yaml",
        "configs/run_001.yaml",
        "job.sh",
        "reference.md",
        "site.yaml",
    ),
    "scripts/slurm/site.yaml",
}
"""What a run, a setting of the cluster, or the build of the site writes: it is never in the repository."""
MADE_UP = {
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
"""What pages, tests and benchmarks make up as examples, and a package that is called like a file."""
HISTORY = {"docs/LOG.md", "CHANGELOG.md"}
"""Pages that speak of files as they were then."""


def constants(node: ast.stmt) -> Iterator[str]:
    """The UPPER_CASE names that a statement of a module binds, but for type variables."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        made = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id.isupper() and made not in ("TypeVar", "ParamSpec"):
                yield target.id


def test_no_public_class_or_constant_stands_twice() -> None:
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            for name in [node.name] if isinstance(node, ast.ClassDef) else constants(node):
                if not name.startswith("_"):
                    places[name].append(path.relative_to(REPOSITORY).as_posix())
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in EVERYWHERE}
    assert twice == {}


def tracked() -> list[str]:
    """The repository's own files, new ones too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [name for name in listed if (REPOSITORY / name).is_file()]


def texts() -> Iterator[tuple[str, str]]:
    """(name, text) of each file that is written here and speaks of the present; the seeds' pages are quotations."""
    for name in tracked():
        written = Path(name).suffix in {".py", ".md", ".sh", ".toml", ".cff", ".yaml", ".yml", ".txt"}
        ours = name not in HISTORY and not name.startswith("tests/seeds/seed_")
        if ours and (written or name in ("Makefile", ".ci/run")):
            yield name, (REPOSITORY / name).read_text()


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_no_file_names_a_file_that_is_not_here() -> None:
    """By its whole path or the end of it. Tests make small configurations of their own, so theirs are let be."""
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
    """Whether a dotted name leads to a module, or to a word in the one it ends in."""
    place = REPOSITORY
    for part in dotted.split("."):
        if (place / f"{part}.py").is_file():
            return True
        if not (place / part).is_dir():
            face = place / "__init__.py"
            return face.is_file() and bool(re.search(rf"\b{part}\b", face.read_text()))
        place /= part
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

"""The pages for readers: every link leads to a file, and R2V accepts every command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.cli.options import load_config
from r2v.pipeline.jobs import JOBS
from tests.docs.pages import PAGES, PLACEHOLDER, REPOSITORY, blocks_of, spans_of

TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
OURS = ("r2v", "make", "python", ".venv/bin/r2v", ".venv/bin/python")

SCRIPTS = {"collect_trajectories": "collect", "run_memory_optimized": "train_hierarchical"}
"""The commands behind scripts with other names."""


def _commands() -> Iterator[tuple[str, str]]:
    """Yield (page, command) of every line in a shell block, and of every code span, that begins with a command of
    ours."""
    for page in PAGES:
        name = page.relative_to(REPOSITORY).as_posix()
        lines = [line for block in blocks_of(page) if block.language == "bash" for line in block.commands]
        for line in (*lines, *spans_of(page)):
            words = shlex.split(line, comments=True) if line.split()[:1] and line.split()[0] in OURS else []
            if len(words) > 1:
                yield name, line


COMMANDS = [*dict.fromkeys(_commands())]


def _parsed(words: list[str]) -> None:
    """Parse the command line with the real parser, load its configuration and apply its overrides."""
    arguments = cli.build_parser().parse_args([word for word in words if word != "--help"] or ["config"])
    if hasattr(arguments, "overrides") and hasattr(arguments, "seed"):
        if arguments.config == "FILE":
            arguments.config = None
        load_config(arguments)


def test_there_are_pages_and_commands() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "CONTRIBUTING.md", "data.md", "pipeline.md"}
    assert {name for name, _ in COMMANDS} >= {"README.md", "docs/data.md", "docs/pipeline.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name}: {target} is not there"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", linked.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_line_is_one_that_is_taken(page: str, line: str) -> None:
    program, *words = shlex.split(PLACEHOLDER.sub("X", line), comments=True)
    program = Path(program).name
    if program == "make":
        assert {word for word in words if "=" not in word} <= TARGETS
    elif program == "r2v":
        _parsed(words)
    elif words[:2] == ["-m", "r2v"]:
        _parsed(words[2:])
    elif words[0].startswith("scripts/"):
        assert (REPOSITORY / words[0]).is_file()
        _parsed([SCRIPTS.get(name := Path(words[0]).stem, name), *words[1:]])
    elif words[0] not in ("-m", "-c"):
        assert (REPOSITORY / words[0]).is_file()


GLOSSARY = re.findall(r"^\| ([^|]+?) \| `(r2v/[\w/]+\.py)` \|", (REPOSITORY / "docs" / "glossary.md").read_text(), re.M)
"""(word, module) of every row of the glossary's tables."""


def _identifiers(module: Path) -> set[str]:
    """Return every name that a module binds, reads or takes, in lower case without underscores."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        for field in ("name", "id", "attr", "arg"):
            value = getattr(node, field, None)
            names.update({value} if isinstance(value, str) else ())
    return {_plain(name) for name in names}


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def test_the_glossary_answers_where_sixty_things_are() -> None:
    assert len(GLOSSARY) >= 60 and len({word for word, _ in GLOSSARY}) == len(GLOSSARY)


@pytest.mark.parametrize(("word", "module"), GLOSSARY)
def test_a_module_of_the_glossary_holds_its_word_as_an_identifier(word: str, module: str) -> None:
    """The word itself, or the name in code type behind it."""
    named = re.search(r"\(`([^`]+)`\)", word)
    identifier = _plain(named[1] if named else word)
    assert any(identifier in name for name in _identifiers(REPOSITORY / module)), f"{module} has no name for {word}"


def _table(page: str, *heads: str) -> list[list[str]]:
    """Return the cells of a page's table whose first columns have these heads, without code type."""
    rows = [line.strip().strip("|").split("|") for line in (REPOSITORY / page).read_text().splitlines() if "|" in line]
    cells = [[cell.replace("`", "").strip() for cell in row] for row in rows]
    begins = next(i for i, row in enumerate(cells) if row[: len(heads)] == [*heads])
    return list(takewhile(lambda row: len(row) == len(cells[begins]), cells[begins + 2 :]))


def _places(**folders: str) -> list[str]:
    """Return the folder that each job publishes; those of collect come from the registry."""
    return [Path(row.place.format(**folders)).as_posix() if row.place else "data/runs/<run_id>" for row in JOBS]


def test_the_stage_table_of_the_architecture_page_is_the_pipelines() -> None:
    number, command, needs, leaves = zip(*_table("docs/architecture.md", "#", "command"), strict=True)
    assert list(number) == [row.number for row in JOBS]
    assert list(command) == [" ".join(("r2v", *row.argv)) for row in JOBS]
    assert list(needs) == [", ".join(row.needs) for row in JOBS]
    shown = [folder.partition(":")[0].rstrip("/") for folder in leaves]
    assert shown == _places(prefix="mrp/", pipeline="", benchmark="mrp")


def test_the_stage_table_of_the_pipelines_page_is_the_pipelines() -> None:
    job, reads, folders, content = zip(*_table("docs/pipeline.md", "job"), strict=True)
    assert list(job) == [row.name for row in JOBS]
    assert list(reads) == [", ".join(row.inputs) for row in JOBS]
    shown = [folder.rstrip("/") for folder in folders]
    assert shown == _places(prefix="", pipeline="<bc>", benchmark="<benchmark>")
    for row, files in zip(JOBS, content, strict=True):
        assert all(name in files for name in row.outputs if row.place), f"{row.name}: {row.outputs}"


def test_the_stage_table_of_the_slurm_page_is_the_pipelines() -> None:
    number, job, script, *_ = zip(*_table("docs/slurm.md", "#"), strict=True)
    assert list(number) == [row.number for row in JOBS]
    assert list(job) == [row.name for row in JOBS]
    assert list(script) == [row.command.script for row in JOBS]

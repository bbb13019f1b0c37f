"""Schemas: each leaf of each JSON file of a run is deleted, given another type, put out of range, made null and swapped
with another record's, and the command that reads the file names it. Counted by kind."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.errors import InputError
from r2v.pipeline.inputs import fingerprint_of, made_already
from r2v.pipeline.jobs import job
from r2v.randomness import generator
from r2v.storage.artifact import ARTIFACT_MANIFEST, attempt_of, look
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.files import VOLATILE
from tests.trust import MICRO, drawn
from tests.trust.alter import (
    LEAVES,
    LeafPath,
    altered,
    hard_copy,
    leaves,
    read_records,
    rewrite,
    swapped,
    write_records,
)
from tests.trust.kinds import KINDS, STORE, FileKind, files_of, kind

HOW = (*LEAVES, "swap")
ENOUGH = 400
"""Leaves of one record that are altered with --whole-suites: a tokenizer's vocabulary has thousands of one schema."""
FORMS = [row for row in KINDS if row.form in ("json", "jsonl") and row.in_micro_run]
CASES = [(row.name, how) for row in FORMS if row.content for how in HOW]


@dataclass(frozen=True, kw_only=True)
class AlteredLeaf:
    """A file with one leaf altered."""

    file: Path
    leaf: LeafPath


@pytest.fixture
def project(micro_run: Path, tmp_path: Path) -> Path:
    return hard_copy(micro_run, tmp_path / "project")


def alterations(path: Path, how: str, at_most: int) -> Iterator[AlteredLeaf]:
    """Alter leaves of a file one after the other, and restore it after each."""
    content, records = path.read_bytes(), read_records(path)
    index = generator("schema", path.name, how).randrange(len(records)) if records else 0
    paths = list(leaves(records[index])) if records else []
    for leaf in drawn(paths, at_most, f"{path.name} {how}")[:ENOUGH]:
        try:
            new = swapped(records, index, leaf) if how == "swap" else altered(records[index], leaf, LEAVES[how])
        except LookupError:
            continue  # no other record differs there
        if new == records[index] and json.dumps(new) == json.dumps(records[index]):
            continue
        write_records(path, [*records[:index], new, *records[index + 1 :]])
        yield AlteredLeaf(file=path, leaf=leaf)
    rewrite(path, content)


def of_kind(project: Path, row: FileKind) -> list[Path]:
    """Return files of a kind that hold JSON: one for each name."""
    found = {
        path.name: path for path, other in files_of(project) if other is row and path.suffix in (".json", ".jsonl")
    }
    return [found[name] for name in sorted(found)]


def volatile(leaf: LeafPath) -> bool:
    """True if a leaf is a time or a place: no content, as long as its type is right."""
    return leaf[-1] in VOLATILE


@pytest.mark.parametrize(("name", "how"), drawn(CASES, 12, "schemas"))
def test_no_altered_leaf_of_content_is_read(project: Path, name: str, how: str) -> None:
    counted: Counter[str] = Counter()
    for path in of_kind(project, kind(name)):
        folder = project / STORE / path.relative_to(project / STORE).parts[0]
        made, _, key = folder.name.rpartition("-")
        for one in alterations(path, how, 6):
            counted[name] += 1
            if volatile(one.leaf) and how in ("range", "null", "swap"):
                continue
            with pytest.raises(Damaged) as raised:
                look(folder.parent, made, key)
            assert raised.value.path == path, one
    assert counted[name] or how == "swap" or not any(map(read_records, of_kind(project, kind(name))))


@pytest.mark.parametrize("how", LEAVES)
def test_no_altered_leaf_of_an_artifact_manifest_is_read(project: Path, how: str) -> None:
    for folder in sorted((project / STORE).glob("bc-*")):
        made, _, key = folder.name.rpartition("-")
        for one in alterations(folder / ARTIFACT_MANIFEST, how, 12):
            with pytest.raises(Damaged, match="artifact.json is damaged"):
                look(folder.parent, made, key)
            assert one.leaf


@pytest.mark.parametrize("how", LEAVES)
def test_an_attempt_is_continued_as_it_was_begun_or_not_at_all(project: Path, how: str) -> None:
    """Figures come from the inputs themselves; the table of jobs gives the required inputs."""
    (folder,) = (project / STORE).glob("bc-*")
    before = attempt_of(folder)
    for one in alterations(folder / "attempt.meta.json", how, 12):
        if (how == "range" and one.leaf == ("inputs",)) or (how == "delete" and len(one.leaf) == 2):
            continue
        try:
            after = attempt_of(folder)
        except InputError as error:
            assert str(error)
        else:
            assert after == before, one


def test_the_command_asks_which_inputs_an_attempt_must_have(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (project / STORE).glob("bc-*")
    rewrite(folder / "attempt.meta.json", b'{"job": "bc", "inputs": {}}')
    monkeypatch.chdir(project)
    assert main(["train_policy", "--resume", "outputs/micro/policy/bc/checkpoint-latest"]) == 3
    assert "attempt.meta.json is damaged: it names no inputs" in capsys.readouterr().err


def _run_manifest(project: Path) -> Path:
    (path,) = (project / "data" / "runs").glob("*/run_manifest.json")
    return path


READ_OF_A_RUN = ("data_sha256", "status", "n_episodes", "n_success", "total_cost_usd", "schema_version")


@pytest.mark.parametrize("how", LEAVES)
def test_what_a_run_manifest_says_of_the_data_is_believed_only_where_it_is_true(project: Path, how: str) -> None:
    config, row = load(str(MICRO)), job("collect")
    key = fingerprint_of(config, row, {})
    whole = made_already(config, row, key, project)
    assert whole is not None
    for one in alterations(_run_manifest(project), how, 1000):
        if one.leaf[0] in READ_OF_A_RUN:
            with pytest.raises(InputError):
                made_already(config, row, key, project)
        else:
            _read_or_refused(config, key, project, one)
    assert made_already(config, row, key, project) == whole


def _read_or_refused(config: Any, key: str, project: Path, one: AlteredLeaf) -> None:
    """A manifest with another note, host or time is read, or refused by name; it is no traceback either way."""
    try:
        assert made_already(config, job("collect"), key, project) is not None, one
    except InputError as error:
        assert "run" in str(error), one


def test_the_copy_is_put_back_after_each_alteration(project: Path, micro_run: Path) -> None:
    path = of_kind(project, kind("threshold"))[0]
    for _ in alterations(path, "delete", 3):
        pass
    assert path.read_bytes() == (micro_run / path.relative_to(project)).read_bytes()
    shutil.rmtree(project)

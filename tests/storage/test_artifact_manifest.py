"""The artifact manifest is read strictly: an impossible value is refused, leaf by leaf."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from r2v.errors import InputError
from r2v.storage.artifact_manifest import (
    ARTIFACT_MANIFEST,
    ArtifactManifest,
    Damaged,
    json_sha256,
    plain_files,
    read_artifact_manifest,
    relative,
    write_artifact_manifest,
)
from tests.trust.alter import LEAVES, LeafPath, altered, leaves

SHA = "ab" * 32
MANIFEST = ArtifactManifest(
    stage="r2v.stages.perturb:STAGE",
    fingerprint="0123456789abcdef",
    files={"a.jsonl": SHA, "final/b.json": SHA},
    inputs={"collect": SHA},
    summary={"n": 1, "rate": 0.1, 3: "an int for a key", "inner": {"list": [1, None]}},
    config_sha256=SHA,
)


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    write_artifact_manifest(tmp_path, MANIFEST)
    written: dict[str, Any] = json.loads((tmp_path / ARTIFACT_MANIFEST).read_text())
    return written


def test_what_is_written_is_read(record: dict[str, Any], tmp_path: Path) -> None:
    assert record["format"] == 3, "what was written as another format would be refused"
    read = read_artifact_manifest(tmp_path)
    assert (read.files, read.inputs, read.config_sha256) == (MANIFEST.files, MANIFEST.inputs, SHA)
    assert read.summary == {"n": 1, "rate": 0.1, "3": "an int for a key", "inner": {"list": [1, None]}}


@pytest.mark.parametrize("how", LEAVES)
def test_no_altered_leaf_is_read(record: dict[str, Any], tmp_path: Path, how: str) -> None:
    paths: list[LeafPath] = list(leaves(record))
    assert len(paths) > 15
    for path in paths:
        (tmp_path / ARTIFACT_MANIFEST).write_text(json.dumps(altered(record, path, LEAVES[how])))
        with pytest.raises(Damaged, match="artifact.json is damaged"):
            read_artifact_manifest(tmp_path)


@pytest.mark.parametrize("how", LEAVES)
def test_nor_is_one_whose_last_hash_was_computed_again(record: dict[str, Any], tmp_path: Path, how: str) -> None:
    """Except values that another manifest may hold: the figures of the summary, and another name or hash."""
    del record["sha256"]
    for path in leaves(record):
        if path[0] == "summary" and (len(path) > 1 or how == "range"):
            continue
        if how == "delete" and path[0] in ("files", "inputs") and len(path) > 1:
            continue
        if how == "range" and path in (("files",), ("inputs",)):
            continue
        forged = altered(record, path, LEAVES[how])
        (tmp_path / ARTIFACT_MANIFEST).write_text(json.dumps({**forged, "sha256": json_sha256(forged)}))
        with pytest.raises(Damaged):
            read_artifact_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "null", "[]", "7", '"x"', "{}", "{", '{"stage": NaN}', "[" * 100_000, "\udcff"])
def test_anything_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / ARTIFACT_MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Damaged, match="artifact.json is damaged"):
        read_artifact_manifest(tmp_path)


@pytest.mark.parametrize(("text", "keys"), [("{}", "none"), ('{"b": 1, "a": 2}', "a, b")])
def test_an_object_with_other_keys_is_named_by_them(tmp_path: Path, text: str, keys: str) -> None:
    (tmp_path / ARTIFACT_MANIFEST).write_text(text)
    with pytest.raises(Damaged, match=f"its keys are {keys}(?!,)"):
        read_artifact_manifest(tmp_path)


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / ARTIFACT_MANIFEST).mkdir()
    with pytest.raises(Damaged, match="cannot be read"):
        read_artifact_manifest(tmp_path)


def test_none_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unfinished") as raised:
        read_artifact_manifest(tmp_path)
    assert not isinstance(raised.value, Damaged)


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/../b", "", ".", "a//b", "./a", "a/", "a\nb", "a\x1b[1m", "a\\b"]
)
def test_no_name_leads_out_of_its_folder(name: str) -> None:
    assert not relative(name)
    assert relative("episodes/noisy/r2v@b0.20.jsonl")


def test_files_and_empty_folders_of_any_name_are_listed(tmp_path: Path) -> None:
    for name in ("a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "void").mkdir()
    assert set(plain_files(tmp_path)) == {"a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json", "void/"}


@pytest.mark.parametrize("target", [None, Path(__file__), Path(__file__).parent, Path("gone")])
def test_what_is_no_plain_file_is_refused_and_never_opened(target: Path | None, tmp_path: Path) -> None:
    odd = tmp_path / "setup.json"
    if target is None:
        os.mkfifo(odd)
    else:
        odd.symlink_to(target)
    with pytest.raises(Damaged, match=r"setup\.json is damaged: it is a link, a pipe or a device"):
        plain_files(tmp_path)

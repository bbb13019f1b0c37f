"""Artifacts: named by everything that decides their content, done when their manifest is there, never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.errors import InputError, LeaseConflict
from r2v.storage.artifact import (
    ARTIFACT_MANIFEST,
    ATTEMPT,
    Artifact,
    Damaged,
    attempt_of,
    build,
    clear,
    content_files,
    external,
    find,
    fingerprint,
    places_elsewhere,
    publish,
    read,
)
from r2v.storage.paths import ARTIFACTS
from r2v.storage.removal import NotOurs

INPUT = Artifact(stage="m:S", fingerprint="f", folder=Path("somewhere"), files={"a.jsonl": "1", "b.json": "2"})


def make(store: Path, text: str = "content\n", key: str = "k", **inputs: Artifact) -> Artifact:
    with build(store, "bc", key, "m:S", "seed: 1\n", inputs, store.parent) as work:
        (work.folder / "data.jsonl").write_text(text)
        (work.folder / "final").mkdir(exist_ok=True)
        (work.folder / "final" / "weights").write_bytes(b"\0\1")
        work.summary.update(n=1)
    return read(store / f"bc-{key}")


def key(version: int = 1, stage: str = "m:S", config: Config | None = None, **inputs: Artifact) -> str:
    config = config or Config()
    sections = {"policy": config.policy, "phase": config.training.phase("bc"), "rollout": config.rollout, "seed": 0}
    return fingerprint(stage, version, sections, inputs)


DIFFERENT = {
    "version": key(version=2),
    "stage": key(stage="m:T"),
    "config": key(config=load(None, ["policy.lora_r=4"])),
    "phase": key(config=load(None, ["training.bc.lr=1e-9"])),
    "input": key(a=INPUT),
    "input name": key(b=INPUT),
    "input content": key(a=replace(INPUT, files={"a.jsonl": "1", "b.json": "3"})),
    "input file name": key(a=replace(INPUT, files={"a.jsonl": "1", "c.json": "2"})),
}


def test_a_fingerprint_hears_whatever_decides_the_content() -> None:
    found = [key(), *DIFFERENT.values()]
    assert len(set(found)) == len(found)
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in found)


def test_a_fingerprint_is_deaf_to_where_and_how() -> None:
    elsewhere = replace(
        INPUT,
        folder=Path("/other"),
        fingerprint="g",
        summary={"run_ids": ["x"]},
        stage="n:S",
        files=dict(reversed(INPUT.files.items())),
    )
    assert key(a=INPUT) == key(a=elsewhere)
    here, there = (
        ["training.bc.batch_size=16"],
        [
            "training.bc.batch_size=8",
            "training.bc.gradient_accumulation_steps=2",
            "policy.device=cuda",
            "rollout.workers=9",
            "training.save_steps=3",
        ],
    )
    assert key(config=load(None, here)) == key(config=load(None, there))


def test_a_fingerprint_is_deaf_to_the_order_of_what_is_named() -> None:
    sections = {"a": {"x": 1, "y": [1, 2]}, "b": 2}
    turned = {"b": 2, "a": {"y": [1, 2], "x": 1}}
    inputs = {"one": INPUT, "two": replace(INPUT, files={"c": "3"})}
    known = fingerprint("m:S", 1, sections, inputs)
    assert fingerprint("m:S", 1, turned, dict(reversed(inputs.items()))) == known
    assert fingerprint("m:S", 1, {**sections, "a": {"x": 1, "y": [2, 1]}}, inputs) != known


def test_a_fingerprint_is_known() -> None:
    """Pinned: a change here makes every user's artifacts stale."""
    assert fingerprint("m:S", 1, {"x": [1, "two", {"b": None, "a": 0.5}]}, {"in": INPUT}) == "81d89f2505967814"


def test_an_artifact_is_done_when_its_manifest_stands(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert find(store, "bc", "k") is None
    with build(store, "bc", "k", "m:S", "seed: 1\n", {}, tmp_path) as work:
        (work.folder / "data.jsonl").write_text("half")
        assert find(store, "bc", "k") is None
        with pytest.raises(InputError, match="unfinished"):
            read(work.folder)
        (work.folder / "data.jsonl").write_text("whole")
    found = find(store, "bc", "k")
    assert found is not None and set(found.files) == {"data.jsonl"}
    assert (found.folder / "config.yaml").read_text() == "seed: 1\n"


def test_a_build_that_raises_leaves_no_manifest_and_is_continued(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path) as work:
        (work.folder / "kept.jsonl").write_text("paid for")
        raise ZeroDivisionError
    assert not (tmp_path / "bc-k" / ARTIFACT_MANIFEST).exists() and find(tmp_path, "bc", "k") is None
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path) as work:
        assert (work.folder / "kept.jsonl").read_text() == "paid for"


def test_a_finished_artifact_is_made_again_from_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "bc-k" / "checkpoint-3").mkdir()
    with (
        pytest.raises(LeaseConflict, match="finished by another process"),
        build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path),
    ):
        pytest.fail("made twice")
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path, again=True) as work:
        assert {path.name for path in work.folder.iterdir()} == {"config.yaml", ATTEMPT}


def test_find_ignores_what_is_missing_a_file(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert find(tmp_path, "bc", "k") == made
    made.file("final/weights").unlink()
    assert find(tmp_path, "bc", "k") is None
    with pytest.raises(InputError, match="final/weights: missing from the artifact of m:S"):
        made.file("final/weights")


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    made = make(tmp_path)
    manifest = made.folder / ARTIFACT_MANIFEST
    manifest.write_text(manifest.read_text()[:40])
    with pytest.raises(InputError, match="artifact.json is damaged: it is no JSON"):
        read(made.folder)


def test_content_is_neither_metadata_nor_checkpoints(tmp_path: Path) -> None:
    for name in (
        "data.jsonl",
        "final/model",
        "folds/0/model",
        "config.yaml",
        ARTIFACT_MANIFEST,
        ATTEMPT,
        "x.meta.json",
        "checkpoint-7/weights",
        "checkpoint-latest/weights",
        "tmp/draft",
        ".data.jsonl.0a.tmp",
        "data.jsonl.quarantine",
        "data.jsonl.lease/owner",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(content_files(tmp_path)) == ["data.jsonl", "final/model", "folds/0/model"]


def test_data_hashes_look_past_folder_run_and_clock(tmp_path: Path) -> None:
    line = '{"metadata":{"run_id":%s},"success":%s,"wall_time_seconds":%s}\n'
    hashes = [
        make(tmp_path / name, line % values).data_sha256
        for name, values in {
            "here": ('"run-a"', "true", "1.5"),
            "there": ('"run-b"', "true", "null"),
            "other": ('"run-a"', "false", "1.5"),
        }.items()
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_inputs_are_recorded_and_found_again_after_a_move(tmp_path: Path) -> None:
    first = make(tmp_path / "a" / "store")
    make(tmp_path / "a" / "store", key="l", bc=first)
    (tmp_path / "a").rename(tmp_path / "b")
    job, inputs = attempt_of(tmp_path / "b" / "store" / "bc-l")
    assert job == "bc"
    assert inputs["bc"].data_sha256 == first.data_sha256
    assert inputs["bc"].file("data.jsonl").read_text() == "content\n"
    assert read(tmp_path / "b" / "store" / "bc-l").inputs == {"bc": first.data_sha256}
    with pytest.raises(InputError, match="not an attempt of a stage"):
        attempt_of(tmp_path)


def test_an_attempt_is_not_continued_with_another_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.jsonl"
    own.write_text("{}\n")
    make(tmp_path / "store", perturb=external(own))
    assert attempt_of(tmp_path / "store" / "bc-k")[1]["perturb"].files == external(own).files
    own.write_text('{"more": 1}\n')
    with pytest.raises(InputError, match="not the file that .* was begun with"):
        attempt_of(tmp_path / "store" / "bc-k")


def test_publish_switches_a_relative_link(tmp_path: Path) -> None:
    root = tmp_path / "here"
    one, two = make(root / "store", "1"), make(root / "store", "2", key="l")
    place = root / "outputs" / "policy" / "bc"
    for artifact in (one, two, two):
        publish(place, artifact.folder)
        assert place.is_symlink() and not place.readlink().is_absolute()
        assert place.resolve() == artifact.folder.resolve()
    assert [path.name for path in place.parent.iterdir()] == ["bc"]
    root.rename(tmp_path / "there")
    assert (tmp_path / "there" / "outputs/policy/bc/data.jsonl").read_text() == "2"


def test_publish_replaces_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "place").symlink_to("nowhere")
    publish(tmp_path / "place", make(tmp_path / "store").folder)
    assert (tmp_path / "place" / "data.jsonl").exists()


def test_only_a_place_that_nobody_would_look_into_is_written_down(tmp_path: Path) -> None:
    """Garbage collection searches the checkout's own folders; for another disk it reads the attempt's file."""
    root = tmp_path / "checkout"
    made = make(root / ARTIFACTS)
    for place in ("outputs/policy/bc", "data/bc", "results/bc"):
        publish(root / place, made.folder)
    assert places_elsewhere(made.folder) == []
    away, further = tmp_path / "disk" / "bc", root / "bc"
    for place in (away, further, away):
        publish(place, made.folder)
    assert places_elsewhere(made.folder) == [away, further]
    assert read(made.folder) == made, "a place is no content"
    alone = make(tmp_path / "store")
    publish(tmp_path / "store" / "outputs" / "bc", alone.folder)
    assert places_elsewhere(alone.folder) == []


def test_publish_refuses_a_real_folder(tmp_path: Path) -> None:
    place = tmp_path / "bc"
    place.mkdir()
    with pytest.raises(InputError, match="is a real folder, not a link of ours"):
        publish(place, make(tmp_path / "store").folder)
    assert place.is_dir() and not place.is_symlink()


def test_a_file_of_the_users_own_serves_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "merged.jsonl"
    path.write_text("{}\n")
    (tmp_path / "trajectories.jsonl").write_text("another\n")
    artifact = external(path)
    assert artifact.file("trajectories.jsonl") == path
    assert artifact.data_sha256 != external(tmp_path / "trajectories.jsonl").data_sha256
    with pytest.raises(InputError, match="none.jsonl: no such file"):
        external(tmp_path / "none.jsonl")


BUILDER = """
import sys, time
from pathlib import Path
from r2v.storage.artifact import build
with build(Path(sys.argv[1]), "bc", "k", "m:S", "", {}, Path()) as work:
    with (work.folder / "kept.jsonl").open("a") as file:
        file.write("one\\n")
    print("building", flush=True)
    sys.stdin.read()
"""


def test_two_builders_of_one_thing_and_a_kill(tmp_path: Path) -> None:
    """While one builds the other is refused; killed, it leaves its files to the next builder."""
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "building\n"
        with (
            pytest.raises(LeaseConflict, match=f"held by pid {other.pid}"),
            build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path),
        ):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert find(tmp_path, "bc", "k") is None
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path) as work, (work.folder / "kept.jsonl").open("a") as file:
        file.write("two\n")
    found = find(tmp_path, "bc", "k")
    assert found is not None and found.file("kept.jsonl").read_text() == "one\ntwo\n"


def test_an_attempt_that_is_a_link_is_neither_made_nor_emptied_where_it_leads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("mine")
    store = tmp_path / "store"
    store.mkdir()
    (store / "bc-k").symlink_to(home)
    with pytest.raises(InputError, match="bc-k: is a link"), build(store, "bc", "k", "m:S", "", {}, tmp_path):
        pass
    (home / ARTIFACT_MANIFEST).write_text("{")
    (home / ATTEMPT).write_text("{}")
    with pytest.raises(NotOurs, match="is a link"):
        clear(store / "bc-k")
    assert {path.name for path in home.iterdir()} == {"thesis.tex", ARTIFACT_MANIFEST, ATTEMPT}


def test_a_damaged_artifact_without_the_record_of_its_attempt_is_kept(tmp_path: Path) -> None:
    folder = make(tmp_path).folder
    (folder / "data.jsonl").write_text("altered")
    (folder / ATTEMPT).unlink()
    with (
        pytest.raises(NotOurs, match=f"no {ATTEMPT} that says so"),
        build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path, mend=True),
    ):
        pass
    assert (folder / "data.jsonl").read_text() == "altered"


def test_a_folder_where_an_attempt_says_what_it_is_is_damage(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / ATTEMPT).unlink()
    (made.folder / ATTEMPT).mkdir()
    with pytest.raises(InputError, match="it does not say what was begun"):
        attempt_of(made.folder)


@pytest.mark.parametrize("lie", [{"stage": "m:T"}, {"fingerprint": "l"}, {"summary": {"n": 2}}])
def test_an_attempt_does_not_say_of_an_input_what_its_own_manifest_does_not(
    tmp_path: Path, lie: dict[str, object]
) -> None:
    """Another stage or fingerprint is refused; the figures are the manifest's, whatever the attempt's file says."""
    attempt = make(tmp_path, key="l", bc=make(tmp_path)).folder / ATTEMPT
    record = json.loads(attempt.read_text())
    record["inputs"]["bc"].update(lie)
    attempt.write_text(json.dumps(record))
    if "summary" in lie:
        assert attempt_of(attempt.parent)[1]["bc"].summary == {"n": 1}
        return
    with pytest.raises(Damaged, match=r"it describes .*bc-k otherwise than the artifact\.json there"):
        attempt_of(attempt.parent)


@pytest.mark.parametrize("lie", ["another job", "a file above", "no hash", "no input"])
def test_an_attempt_that_says_what_none_says_is_damaged(lie: str, tmp_path: Path) -> None:
    made = make(tmp_path, key="l", bc=make(tmp_path))
    record = json.loads((made.folder / ATTEMPT).read_text())
    files = record["inputs"]["bc"]["files"]
    if lie == "another job":
        record["job"] = "verifier"
    elif lie == "a file above":
        files["../../secret"] = files["data.jsonl"]
    elif lie == "no hash":
        files["data.jsonl"] = "ab"
    else:
        record["inputs"]["bc"] = []
    (made.folder / ATTEMPT).write_text(json.dumps(record))
    with pytest.raises(Damaged, match="it does not say what was begun"):
        attempt_of(made.folder)


def test_an_artifact_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    store = tmp_path / ARTIFACTS
    made = make(store)
    assert read(made.folder) == made
    made.folder.rename(store / "bc-l")
    with pytest.raises(Damaged, match="its fingerprint is k, its folder bc-l"):
        read(store / "bc-l")
    assert find(store, "bc", "l") is None, "and is made again"

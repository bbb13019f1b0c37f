"""An ablation study is audited from its folder alone: its evaluations, their owners, and its tables."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.evaluation.tables.files import with_manifest
from r2v.experiments.ablation_audit import is_study, verify_ablations
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import content_sha256
from r2v.storage.integrity import content_files
from tests.trust.alter import rewrite
from tests.trust.tampering import verify

TABLES = ("ablations.csv", "earns_its_place.csv")


@pytest.fixture
def study(micro_run: Path, tmp_path: Path) -> Path:
    """Return the study of the micro run as a third party receives it; hard links, so replace files, never write into
    them."""
    made = (micro_run / "results" / "ablations" / "micro").resolve()
    shutil.copytree(made, tmp_path / "micro", copy_function=os.link)
    return tmp_path / "micro"


def make_consistent(study: Path) -> None:
    """Recompute every hash, as a deliberate forger would."""
    tables = study / "structured_results"
    texts = with_manifest({name: (tables / name).read_text() for name in TABLES})
    rewrite(tables / "manifest.json", texts["manifest.json"].encode())
    record = json.loads((study / "artifact.json").read_text())
    record |= {"files": content_files(study), "config_sha256": content_sha256(study / "config.yaml")}
    del record["sha256"]
    rewrite(study / "artifact.json", json.dumps(record | {"sha256": json_sha256(record)}).encode())


def change_text(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    rewrite(path, text.replace(before, after).encode())


def alter_table(study: Path) -> None:
    change_text(study / "structured_results" / "ablations.csv", "with_verifier,", "with_verifier,better: ")


def claim_retraining(study: Path) -> None:
    change_text(study / "structured_results" / "ablations.csv", "router_features router", "none")


def swap_evaluations(study: Path) -> None:
    changes = json.loads((study / "changes.json").read_text())
    one, other = (changes["with_verifier"][f"{side}_evaluation"] for side in ("base", "ablated"))
    assert one != other
    text = (study / "changes.json").read_text()
    swapped = text.replace(one, "other").replace(other, one).replace("other", other)
    rewrite(study / "changes.json", swapped.encode())


def leave_out(study: Path) -> None:
    shutil.rmtree(next((study / "evaluations").iterdir()))


def name_a_place_outside(study: Path) -> None:
    change_text(study / "changes.json", '"evaluations/', '"../evaluations/')


def change_an_override(study: Path) -> None:
    change_text(study / "changes.json", "uncertainty,verifier", "verifier")


def add_a_file(study: Path) -> None:
    (next((study / "evaluations").iterdir()) / "notes.txt").write_text("mine")


def test_a_study_holds_and_says_what_it_cannot_prove(study: Path) -> None:
    assert is_study(study) and not is_study(study / "structured_results")
    code, out, err = verify(study)
    assert code == 0, err
    assert out.startswith("2 rows of ablations.csv rest on 2 evaluations of 8 episodes")
    assert "not proved: retrained_stages" in out and "not proved: the small policy's replies" in out


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an altered table": (alter_table, "ablations.csv is not what the evaluations give"),
    "another list of what was made again": (claim_retraining, "retrained_stages: with_verifier: the inputs"),
    "evaluations swapped": (swap_evaluations, "was played by another"),
    "a missing evaluation": (leave_out, "no such folder of results"),
    "a place outside": (name_a_place_outside, "is no path of an evaluation"),
    "another override": (change_an_override, "rows or overrides are not those of config.yaml"),
    "a stray file": (add_a_file, "notes.txt"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_one_line(name: str, study: Path) -> None:
    lie, line = LIES[name]
    lie(study)
    make_consistent(study)
    with pytest.raises(InputError) as raised:
        verify_ablations(study)
    assert line in str(raised.value) and "\n" not in str(raised.value)

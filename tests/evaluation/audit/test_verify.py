"""A configuration beside results has the form in which R2V writes it, and the tables follow from the episodes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from r2v.config import load, to_yaml
from r2v.data.store import write_episodes
from r2v.errors import InputError
from r2v.evaluation.audit.check_setup import config_problems
from r2v.evaluation.audit.rebuild_tables import differing, rebuild
from r2v.evaluation.measures.outcomes import Outcome
from r2v.evaluation.setup import planned_files, read_setup, write_setup
from r2v.evaluation.tables.build import STRUCTURED, write_results_folder


def test_what_r2v_writes_has_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load(None, ["training.lr=1e-5", "teacher.max_usd=3"])))
    assert list(config_problems(path)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hierarchical: {enabled: 'yes'}", "hierarchical.enabled is 'yes', R2V writes True"),
        ("training: {num_epochs: '3'}", "training.num_epochs is '3', R2V writes 3.0"),
        ("data: {seeds: ['1']}", "data.seeds[0] is '1', R2V writes 1"),
    ],
)
def test_what_a_lenient_reader_converts_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert list(config_problems(path)) == [named]


def store(results, episodes, setup):
    write_setup(results, setup)
    for path, *cell in planned_files(results, setup):
        of_cell = [e for e in episodes if [(o := Outcome.of(e)).condition, o.method, o.point] == cell]
        write_episodes(path, of_cell)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, episodes, setup):
    results = tmp_path_factory.mktemp("desk_noisy")
    store(results, episodes, setup)
    assert write_results_folder(results).n_episodes == len(episodes)
    return results


@pytest.fixture
def results(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "desk_noisy")


def test_setup_round_trip(results, setup):
    assert read_setup(results) == setup


def test_tables_are_what_the_episodes_say(results):
    texts = rebuild(results)
    assert differing(results, texts) == [] and len(texts) == 10


def test_a_flipped_success_changes_the_tables(results, episodes, setup):
    store(results, [dataclasses.replace(episodes[0], success=not episodes[0].success), *episodes[1:]], setup)
    assert {"main_table.csv", "comparisons.csv", "llm_summary.json"} <= set(differing(results, rebuild(results)))


def test_an_edited_missing_or_foreign_file_is_named(results):
    tables = results / STRUCTURED
    text = (tables / "main_table.csv").read_text()
    (tables / "main_table.csv").write_text(text.replace("0.666667", "0.966667"))
    (tables / "main_table.tex").unlink()
    (tables / "better.csv").write_text("")
    assert differing(results, rebuild(results)) == ["main_table.csv", "main_table.tex", "better.csv"]


def test_an_episode_in_another_methods_file_is_refused(results, make_episode):
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    write_episodes(path, [make_episode("slm_only")])
    with pytest.raises(InputError, match="says noisy/slm_only/main, its file says noisy/r2v/main"):
        rebuild(results)


def test_a_folder_without_setup_says_what_writes_it(tmp_path):
    with pytest.raises(InputError, match="written by r2v evaluate"):
        rebuild(tmp_path)
    (tmp_path / "setup.json").write_text('{"benchmark": "desk"}')
    with pytest.raises(InputError, match="not the setup of an evaluation"):
        rebuild(tmp_path)

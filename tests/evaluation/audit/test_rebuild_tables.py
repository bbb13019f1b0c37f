from __future__ import annotations

import dataclasses
import shutil

import pytest

from r2v.data.store import write_episodes
from r2v.errors import InputError
from r2v.evaluation.audit.rebuild_tables import verify_tables
from r2v.evaluation.measures.outcomes import Outcome
from r2v.evaluation.setup import planned_files, read_setup, write_setup
from r2v.evaluation.tables.build import STRUCTURED, write_results_folder


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
    report = verify_tables(results)
    assert report.identical and report.num_files == 10


def test_a_flipped_success_changes_the_tables(results, episodes, setup):
    store(results, [dataclasses.replace(episodes[0], success=not episodes[0].success), *episodes[1:]], setup)
    assert {"main_table.csv", "comparisons.csv", "llm_summary.json"} <= set(verify_tables(results).differing)


def test_an_edited_missing_or_foreign_file_is_named(results):
    tables = results / STRUCTURED
    text = (tables / "main_table.csv").read_text()
    (tables / "main_table.csv").write_text(text.replace("0.666667", "0.966667"))
    (tables / "main_table.tex").unlink()
    (tables / "better.csv").write_text("")
    assert verify_tables(results).differing == ("main_table.csv", "main_table.tex", "better.csv")


def test_an_episode_in_another_methods_file_is_refused(results, make_episode):
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    write_episodes(path, [make_episode("slm_only")])
    with pytest.raises(InputError, match="says noisy/slm_only/main, its file says noisy/r2v/main"):
        verify_tables(results)


def test_a_folder_without_setup_says_what_writes_it(tmp_path):
    with pytest.raises(InputError, match="written by r2v evaluate"):
        verify_tables(tmp_path)
    (tmp_path / "setup.json").write_text('{"benchmark": "desk"}')
    with pytest.raises(InputError, match="not the setup of an evaluation"):
        verify_tables(tmp_path)

"""Pipeline and Results: stages run from Python, in a notebook too, and their tables are data frames."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from r2v import Pipeline, Results, load_config
from r2v.errors import InputError, UsageError
from tests.trust import MICRO


def test_until_ends_behind_a_stage_and_the_next_run_goes_on(tmp_path: Path) -> None:
    pipeline = Pipeline(load_config(str(MICRO)), root=tmp_path)
    assert [done.job for done in pipeline.run(until="perturb")] == ["collect", "perturb"]

    async def cell() -> list[tuple[str, bool]]:
        return [(done.job, done.fresh) for done in pipeline.run(until="perturb")]

    assert asyncio.run(cell()) == [("collect", False), ("perturb", False)], "what is made stays, in a running loop too"
    assert pipeline.stages[:3] == ("collect", "perturb", "bc")
    with pytest.raises(InputError):
        pipeline.results()


def test_a_files_name_is_no_configuration() -> None:
    with pytest.raises(UsageError, match=r"Pipeline of 'mine.yaml': takes a configuration, such as load_config"):
        Pipeline("mine.yaml")  # type: ignore[arg-type]


def test_tables_are_data_frames_of_what_the_files_say(micro_run: Path) -> None:
    results = Pipeline(load_config(str(MICRO)), root=micro_run).results()
    frame = results.to_frame()
    figures = results.figures()["main_table"]
    assert len(frame) == len(figures) and set(frame["method"]) == {row["method"] for row in figures}
    assert {"main_table", "comparisons"} <= set(results.tables)
    for name in results.tables:
        assert len(results.to_frame(name).columns) > 1
    with pytest.raises(InputError, match="no_such: no table of .*; it has .*main_table"):
        results.to_frame("no_such")


def test_the_episodes_behind_the_tables_are_there(micro_run: Path) -> None:
    results = Results(micro_run / "results" / "micro")
    methods = {episode.method for episode in results.episodes()}
    assert {"r2v", "slm_only", "llm_only"} <= methods


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has not finished"):
        Results(tmp_path)

"""The viewer's data hold every episode, its perturbations and the hidden text; long texts are cut with a notice."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from r2v.evaluation.setup import MAIN, OPERATING_POINT, read_setup, stored_episodes
from r2v.report.viewer_data import ViewerLimits, write_episodes


def unpacked(folder: Path) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for path in sorted(folder.glob("data/episodes-*.js")):
        call = re.fullmatch(r'r2vShard\((\d+),"([A-Za-z0-9+/=]+)"\);\n', path.read_text())
        assert call is not None and int(call[1]) == int(path.stem[-4:])
        tasks |= json.loads(gzip.decompress(base64.b64decode(call[2])))
    return tasks


def test_every_episode_of_the_main_table_is_there_step_by_step(micro_results: Path, tmp_path: Path) -> None:
    setup = read_setup(micro_results)
    index = write_episodes(micro_results, setup, tmp_path)
    tasks = unpacked(tmp_path)
    played = [one for one in stored_episodes(micro_results, setup) if one.extra.get(OPERATING_POINT, MAIN) == MAIN]
    assert len(index.rows) == len(played) == sum(map(len, tasks.values())) and index.left_out == 0
    for episode in played:
        cell = (episode.condition, episode.method, episode.metadata.seed)
        [shown] = [
            one for one in tasks[episode.metadata.task_id] if (one["condition"], one["method"], one["seed"]) == cell
        ]
        assert [step["action"] for step in shown["steps"]] == [step.action.raw_text for step in episode.steps]
        assert [step["page"] for step in shown["steps"]] == [step.observation.raw_text for step in episode.steps]
        assert [bool(step.get("hits")) for step in shown["steps"]] == [
            bool(step.perturbations) for step in episode.steps
        ]
    steps = [step for ones in tasks.values() for one in ones for step in one["steps"]]
    assert any("clean" in step for step in steps) and any("gain" in step for step in steps)
    assert all(step["clean"] != step["page"] for step in steps if "clean" in step)


def test_what_is_too_much_is_cut_and_counted(micro_results: Path, tmp_path: Path) -> None:
    limits = ViewerLimits(characters=40, shard_bytes=1, packed_bytes=4000)
    index = write_episodes(micro_results, read_setup(micro_results), tmp_path, limits)
    tasks = unpacked(tmp_path)
    assert 0 < index.left_out < len(index.rows) == index.left_out + sum(map(len, tasks.values()))
    assert sum(row[8] < 0 for row in index.rows) == index.left_out
    pages = [step["page"] for ones in tasks.values() for one in ones for step in one["steps"]]
    assert any("characters are left out of this report" in page for page in pages)

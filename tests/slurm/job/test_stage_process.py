"""The stage's process: it runs behind the launch prefix of its site and is ended when its own pace has stopped."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from r2v.slurm.job.stage_process import STALL_PATIENCE, stalled
from r2v.slurm.site.site_profile import SITE
from tests.slurm.job.test_runner import COMMAND_TIMEOUT, Folder, wait
from tests.slurm.job.test_runner import collected as collected
from tests.slurm.job.test_runner import folder as folder

CONTAINER = """#!/bin/bash
echo "$0 $*" >> {log}
while [ "$1" != {last} ]; do shift; done
shift
[ "$1" = python3 ] && shift && set -- {python} "$@"
exec "$@"
"""
"""Stand-in for the program that enters a container: it runs the command that follows its own options."""
OFTEN = """import sys
from r2v.slurm.job import runner, stage_process
stage_process.LOOK_SECONDS = {}
sys.exit(runner.main())"""


@pytest.mark.parametrize(
    ("site", "program", "last", "told"),
    [
        ("launch: apptainer exec --nv --bind {root} 'a b.sif'", "apptainer", "'a b.sif'", "--nv --bind {root} a b.sif"),
        ("base: pyxis", "srun", "--no-container-mount-home", "--container-workdir={root} --no-container-mount-home"),
    ],
)
def test_a_stage_is_executed_behind_the_launch_prefix(
    site: str, program: str, last: str, told: str, folder: Folder
) -> None:
    (folder.path / SITE).parent.mkdir(parents=True)
    (folder.path / SITE).write_text(site + "\n")
    log, entered = folder.path / "entered.log", folder.path / "bin" / program
    entered.parent.mkdir()
    entered.write_text(CONTAINER.format(log=log, last=last, python=sys.executable))
    entered.chmod(0o755)
    path = f"{entered.parent}:{folder.environment()['PATH']}"
    folder.behave(perturb={"usage": "no such thing"})
    code, said = folder.run("perturb", "desk", PATH=path)
    assert (code, folder.told("exit")["kind"]) == (2, "usage"), said
    folder.behave()
    code, said = folder.run("perturb", "desk", PATH=path, SLURM_RESTART_COUNT="1")
    assert code == 0 and folder.told("exit")["rc"] == 0, said
    for line in log.read_text().splitlines():
        assert told.format(root=folder.path.resolve()) in line and " -m r2v perturb " in line
    assert len(log.read_text().splitlines()) == 2


def test_a_site_profile_that_was_broken_meanwhile_is_one_line_and_the_end_is_recorded(folder: Folder) -> None:
    (folder.path / SITE).parent.mkdir(parents=True)
    (folder.path / SITE).write_bytes(b"# f\xfcr\nlaunch: [\n")
    code, said = folder.run("perturb", "desk")
    assert (code, folder.told("exit")["kind"]) == (3, "input") and "Traceback" not in said, said
    assert f"r2v: {SITE} line 3: not YAML: while parsing" in said


@pytest.mark.parametrize(("deaf", "look"), [(False, 15.0), (True, 0.2)])
def test_a_live_stage_that_stands_still_is_ended_by_its_watchdog(
    deaf: bool, look: float, folder: Folder, tmp_path: Path
) -> None:
    """The first look asks the process to stop, the next one kills it."""
    go = tmp_path / "go"
    go.touch()
    folder.behave(perturb={"steps": 400, "seconds": 0.02, "hold": str(go), "deaf": deaf})
    process = folder.start("perturb", "desk", program=OFTEN.format(look))
    wait(lambda: folder.steps() >= 5)
    go.unlink()
    events = folder.record / "events.jsonl"
    stand: list[int] = []
    wait(lambda: stand.append(folder.steps()) or len(stand) > 50 and len(set(stand[-50:])) == 1)
    last = json.loads(events.read_text().splitlines()[-1])
    pace = [(datetime.fromisoformat(last["at"]) - timedelta(minutes=60 - at)).isoformat() for at in range(6)]
    events.write_text("".join(json.dumps({**last, "done": at, "at": when}) + "\n" for at, when in enumerate(pace)))
    said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
    exit_ = folder.told("exit")
    assert exit_["kind"] == "stalled" and process.returncode == exit_["rc"] != 0, said
    assert "ended by its watchdog" in exit_["line"] and (exit_["signal"] == 9) == deaf


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def paced(*steps: tuple[float, int], what: str = "bc", restart: int = 0) -> list[dict[str, Any]]:
    """Return events at these seconds, each with so many done of 100."""
    return [
        {
            "at": (BEGAN + timedelta(seconds=at)).isoformat(),
            "what": what,
            "done": done,
            "total": 100,
            "restart": restart,
        }
        for at, done in steps
    ]


STEADY = paced((0, 0), (10, 1), (20, 2), (30, 3), (40, 4))
SLOW = paced((0, 0), (1000, 1), (2000, 2), (3000, 3), (4000, 4))


@pytest.mark.parametrize(
    ("told", "after", "hangs"),
    [
        (STEADY, 40 + STALL_PATIENCE - 1, False),
        (STEADY, 40 + STALL_PATIENCE + 1, True),
        (SLOW, 4000 + 9000, False),
        (SLOW, 4000 + 10001, True),
        ([], 1e6, False),
        (STEADY[:3], 1e6, False),
        (paced((0, 0), (10, 50), (20, 75), (30, 90), (40, 100)), 1e6, False),
        ([*STEADY, *paced((50, 0), what="evaluating")], 1e6, False),
        ([*STEADY, *paced((50, 4), restart=1)], 1e6, False),
        (paced((0, 0), (1, 1), (2, 2), (3, 3), *((float(at), 4) for at in range(4, 4000, 10))), 4000.0, True),
    ],
)
def test_a_stage_hangs_where_its_own_pace_has_stopped(told: list[dict[str, Any]], after: float, hangs: bool) -> None:
    restart = told[-1]["restart"] if told else 0
    found = stalled(told, restart, BEGAN + timedelta(seconds=after))
    assert bool(found) == hangs
    assert not hangs or "its longest step took" in str(found)

"""Site profiles: the accepted keys, the defaults, and the resources that a sentinel then requests."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from r2v.errors import InputError, UsageError
from r2v.slurm.site import site_profile
from r2v.slurm.site.site_profile import SiteProfile, project_profile, shipped

HERE = {"partition": "cpu", "account": "lab7"}


def written(root: Path, text: str) -> SiteProfile:
    path = root / site_profile.SITE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return project_profile(root)


@pytest.mark.parametrize("name", site_profile.names())
def test_every_shipped_profile_reads_and_says_that_it_never_ran(name: str) -> None:
    assert shipped(name) != SiteProfile()
    assert "Never run on" in (site_profile.SHIPPED / f"{name}.yaml").read_text()


def test_the_template_has_every_setting_with_its_default() -> None:
    text = (site_profile.SHIPPED / "template.yaml").read_text()
    told = yaml.safe_load("\n".join(re.findall(r"^# ([a-z_]+: .*)$", text, re.M)))
    assert {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()} == {
        entry.name: getattr(SiteProfile(), entry.name) for entry in fields(SiteProfile)
    }
    assert not yaml.safe_load(text)


def test_a_project_says_what_differs_from_a_shipped_profile(tmp_path: Path) -> None:
    site = written(
        tmp_path, "base: nersc\nall_jobs: {qos: regular, account: m1}\nmodules: module load python\nmail: a@b"
    )
    assert site.all_jobs == {"partition": None, "qos": "regular", "account": "m1"}
    assert (site.gpu_jobs, site.kill_on_invalid_dep) == ({"constraint": "gpu"}, False)
    assert (site.modules, site.mail) == (("module load python",), "a@b")
    assert project_profile(tmp_path / "elsewhere") == SiteProfile()


def test_values_reach_sbatch_as_they_stand(tmp_path: Path) -> None:
    site = written(
        tmp_path,
        "all_jobs: {time: 24:00:00, account: 0123, partition: on, exclusive: true, mem: false}\n"
        "max_time: 12:00:00\narrays: no\nmax_gpu_hours: 1e3\nmodules: [0123]\n",
    )
    times = {"time": "24:00:00", "account": "0123", "partition": "on", "exclusive": "", "mem": None}
    assert site == SiteProfile(
        all_jobs=times, max_time="12:00:00", arrays=False, max_gpu_hours="1e3", modules=("0123",)
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("base: nersk", "did you mean nersc"),
        ("launsh: x", "did you mean launch"),
        ("arrays: 'no'", "line 1: arrays: must be true or false"),
        ("all_jobs: [x]", "must be a map of directives"),
        ("all_jobs:\n  mem: [1]", "line 2: all_jobs: must be a map of directives"),
        ("mail: {a: b}", "line 1: mail: must be text"),
        ("- x", "line 1: must be keys with values"),
        ("a: [", "scripts/slurm/site.yaml"),
    ],
)
def test_what_cannot_be_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        written(tmp_path, text)
    with pytest.raises(UsageError, match="did you mean nersc"):
        shipped("nerscs")


def test_a_sentinel_asks_little_and_as_the_site_says(tmp_path: Path) -> None:
    assert SiteProfile().sentinel_directives(HERE) == {
        **HERE,
        "ntasks": "1",
        "cpus-per-task": "1",
        "mem": "1G",
        "time": "5",
        "kill-on-invalid-dep": "yes",
    }
    nersc = shipped("nersc").sentinel_directives({"account": "m1", "qos": "shared", "constraint": "cpu"})
    assert nersc["constraint"] == "cpu" and "kill-on-invalid-dep" not in nersc and "partition" not in nersc
    assert "mem" not in shipped("tacc").sentinel_directives(HERE)
    own = written(tmp_path, "mail: me@site\nsentinels: {time: '10', ntasks: }").sentinel_directives(HERE)
    assert (own["mail-user"], own["mail-type"], own["time"]) == ("me@site", "FAIL", "10") and "ntasks" not in own


def test_a_stage_is_launched_behind_the_sites_words(tmp_path: Path) -> None:
    assert SiteProfile().stage_command(["evaluate"], tmp_path) is None
    launched = SiteProfile(launch="apptainer exec --bind {root} 'a b.sif'").stage_command(["evaluate"], tmp_path)
    assert launched == [
        "apptainer",
        "exec",
        "--bind",
        str(tmp_path),
        "a b.sif",
        sys.executable,
        "-m",
        "r2v",
        "evaluate",
    ]
    pyxis = shipped("pyxis").stage_command(["collect"], tmp_path)
    assert pyxis is not None and pyxis[0] == "srun" and pyxis[-4:] == ["python3", "-m", "r2v", "collect"]

"""Headers: read as sbatch reads them, mistakes named by file and line, and set all at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from r2v.errors import InputError, UsageError
from r2v.pipeline.jobs import JOBS
from r2v.slurm.site import headers
from r2v.slurm.site.directives import minutes
from r2v.slurm.site.headers import Resources
from r2v.storage import paths

REPOSITORY = Path(__file__).parents[3]

SEED_TABLE = {
    "01_collect.sh": ("", 1, 24),
    "02_perturb.sh": ("", 0, 4),
    "03_train_policy.sh": ("", 2, 48),
    "04_train_verifier.sh": ("", 1, 12),
    "05_generate_candidates.sh": ("", 1, 24),
    "06_generate_router_features.sh": ("", 1, 12),
    "07_train_router.sh": ("", 1, 4),
    "08_evaluate.sh": ("", 1, 24),
    "09_ablations.sh": ("", 1, 48),
    "mrp.sh": ("", 0, 6),
}


def script(folder: Path, *lines: str) -> Path:
    path = folder / "job.sh"
    path.write_text("\n".join(("#!/bin/bash", *lines, "exec true", "")))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a copy of the real scripts."""
    shutil.copytree(REPOSITORY / "scripts" / "slurm", tmp_path / "scripts" / "slurm")
    return tmp_path


@pytest.mark.parametrize("name", SEED_TABLE)
def test_the_real_headers_are_the_seeds_table(name: str) -> None:
    job, gpus, hours = SEED_TABLE[name]
    found = headers.read(REPOSITORY / paths.SCRIPTS / name, job)
    assert (found.gpus, found.time_minutes) == (gpus, hours * 60)


def test_the_phases_of_one_script_differ_where_the_seed_says_so() -> None:
    path = REPOSITORY / paths.SCRIPTS / "03_train_policy.sh"
    bc, preference = headers.read(path, "bc"), headers.read(path, "preference")
    assert (bc.time_minutes, preference.time_minutes) == (48 * 60, 24 * 60)
    assert {**preference.directives, "time": "48:00:00"} == bc.directives == headers.read(path).directives


def test_every_spelling_of_a_directive(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "# a remark",
        "#SBATCH --time=1-2 --mem 8G  # both of them",
        "#SBATCH -p gpu -c4",
        "#SBATCH -J 'a name'",
        "##SBATCH --time=9",
        "# SBATCH --time=9",
        "#SBATCH --requeue",
        "",
        "#SBATCH --gpus-per-node=a100:2 --nodes=2",
    )
    found = headers.read(path)
    assert found.directives == {
        "time": "1-2",
        "mem": "8G",
        "partition": "gpu",
        "cpus-per-task": "4",
        "job-name": "a name",
        "requeue": "",
        "gpus-per-node": "a100:2",
        "nodes": "2",
    }
    assert (found.gpus, found.time_minutes) == (4, 26 * 60)
    assert found.sbatch_args()[:2] == ["--time=1-2", "--mem=8G"] and "--requeue" in found.sbatch_args()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("#SBATCH --time=2h", "--time=2h: wanted minutes"),
        ("#SBATCH --mem=64Q", "such as 64G"),
        ("#SBATCH --gres=gpu:a100:", "such as gpu:a100:2"),
        ("#SBATCH --time", "--time=: wanted minutes"),
        ("#SBATCH --=yes", "--=yes is no sbatch option"),
        ("#SBATCH gpu", "gpu is no sbatch option"),
        ("#SBATCH --job-name='x", "No closing quotation"),
        ("#SBATCH:--time=5", "written #SBATCH --name=value"),
    ],
)
def test_a_wrong_directive_is_named_by_file_and_line(line: str, told: str, tmp_path: Path) -> None:
    path = script(tmp_path, "#SBATCH --time=5", line)
    with pytest.raises(UsageError) as caught:
        headers.read(path)
    assert str(caught.value).startswith(f"{path}:3: ") and told in str(caught.value)


@pytest.mark.parametrize("line", ["#SBATCH --mem=8G", "  #SBATCH --mem=8G"])
def test_a_directive_that_sbatch_would_pass_over_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"job\.sh:4: .*follows the first command"):
        headers.read(script(tmp_path, "#SBATCH --time=5", "cd /tmp", line))


def test_an_option_of_a_plugin_is_passed_on_as_it_stands(tmp_path: Path) -> None:
    """sbatch decides about its own options: pyxis, SPANK plugins and later versions have others."""
    found = headers.read(
        script(tmp_path, "#SBATCH --container-image=nvcr.io/nvidia/pytorch:25.05-py3 --uenv x --stepmgr")
    )
    assert found.sbatch_args() == ["--container-image=nvcr.io/nvidia/pytorch:25.05-py3", "--uenv=x", "--stepmgr"]


def test_no_script_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no script .*nothing\.sh"):
        headers.read(tmp_path / "nothing.sh")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:30", 91),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("2-1:30", 2970),
        ("2-1:30:01", 2971),
        ("0:30", 1),
        ("UNLIMITED", 0),
    ],
)
def test_time_limits(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize(
    ("directives", "gpus"),
    [
        ({"gres": "gpu:a100:2"}, 2),
        ({"gres": "gpu:2,shard:4"}, 2),
        ({"gres": "gpu"}, 1),
        ({"gres": "gpu:a100"}, 1),
        ({"gres": "gpu:2", "nodes": "2-4"}, 4),
        ({"gpus": "a100:3"}, 3),
        ({"gpus-per-task": "1", "ntasks": "4"}, 4),
        ({"gres": "shard:4"}, 0),
        ({}, 0),
    ],
)
def test_gpus_of_the_whole_job(directives: dict[str, str], gpus: int) -> None:
    assert Resources(directives=directives).gpus == gpus


def test_merging_checks_what_it_takes() -> None:
    first = Resources(directives={"mem": "8G", "time": "10"})
    assert first.merged({"mem": "12G"}).directives == {"mem": "12G", "time": "10"}
    with pytest.raises(UsageError, match="such as 64G"):
        first.merged({"mem": "a lot"})


def test_set_rewrites_every_header_at_once_and_nothing_else(folder: Path) -> None:
    paths = headers.scripts(folder)
    before = {path: path.read_text() for path in folder.rglob("*.sh")}
    modes = {path: path.stat().st_mode for path in before}
    changed = headers.rewrite(paths, {"partition": "batch", "account": "lab7", "gpu": "h100"})
    assert changed == paths and len(paths) >= len(JOBS)
    for path, text in before.items():
        now, old = path.read_text().splitlines(), text.splitlines()
        assert path.stat().st_mode == modes[path]
        added = [line for line in now if line not in old]
        assert [line for line in old if not line.startswith("#SBATCH")] == [
            line for line in now if not line.startswith("#SBATCH")
        ]
        if path in paths:
            gpus = headers.read(path).gpus
            assert added == [
                "#SBATCH --partition=batch",
                *([f"#SBATCH --gres=gpu:h100:{gpus}"] if gpus else []),
                "#SBATCH --account=lab7",
            ]
        else:
            assert added == []


def test_set_and_set_back_leaves_the_files_as_they_were(folder: Path) -> None:
    paths = [path for path in headers.scripts(folder) if "gpu:a100" in path.read_text()]
    before = {path: path.read_text() for path in paths}
    headers.rewrite(paths, {"partition": "batch", "gpu": "h100", "qos": "long", "account": "x"})
    assert headers.rewrite(paths, {"partition": "gpu", "gpu": "a100", "qos": "", "account": ""}) == paths
    assert {path: path.read_text() for path in paths} == before
    assert headers.rewrite(paths, {"partition": "gpu"}) == []


def test_a_partition_of_its_own_for_jobs_without_a_gpu(folder: Path) -> None:
    paths = headers.scripts(folder)
    without = {path.name for path in paths if "--partition=cpu" in path.read_text()}
    headers.rewrite(paths, {"partition": "batch", "cpu_partition": "small"})
    partitions = {path.name: headers.read(path).directives["partition"] for path in paths}
    assert without >= {"02_perturb.sh", "mrp.sh"} and "01_collect.sh" not in without
    assert partitions == {name: "small" if name in without else "batch" for name in partitions}


def test_set_takes_a_users_own_spelling(tmp_path: Path) -> None:
    path = script(
        tmp_path, "#SBATCH -p gpu --time=5   # mine", "#SBATCH --gpus-per-node=a100:2", "#SBATCH --account old"
    )
    headers.rewrite([path], {"partition": "batch", "gpu": "h100", "account": ""})
    assert path.read_text().splitlines()[1:-1] == [
        "#SBATCH --partition=batch --time=5   # mine",
        "#SBATCH --gpus-per-node=h100:2",
    ]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"evaluat.mem": "8G"}, "did you mean evaluate?"),
        ({"constraint": "a b"}, "one word"),
        ({"mem": "a-lot"}, "such as 64G"),
        ({"partition": ""}, "a name of letters"),
        ({"account": "a b"}, "a name of letters"),
        ({"gpu": "a100\n#SBATCH --uid=0"}, "a name of letters"),
    ],
)
def test_set_refuses_what_cannot_be(values: dict[str, str], told: str, folder: Path) -> None:
    before = {path: path.read_text() for path in headers.scripts(folder)}
    with pytest.raises(UsageError) as caught:
        headers.rewrite(headers.scripts(folder), values)
    assert told in str(caught.value)
    assert {path: path.read_text() for path in headers.scripts(folder)} == before


def test_any_directive_is_set_in_all_or_in_one_script(folder: Path) -> None:
    paths = headers.scripts(folder)
    headers.rewrite(paths, {"constraint": "gpu&hbm80g", "train_policy.mem": "120G", "evaluate.time": "2-00:00:00"})
    found = {path.name: headers.read(path).directives for path in paths}
    assert {values["constraint"] for values in found.values()} == {"gpu&hbm80g"}
    assert found["03_train_policy.sh"]["mem"] == "120G" and found["04_train_verifier.sh"]["mem"] == "48G"
    assert found["08_evaluate.sh"]["time"] == "2-00:00:00"


def test_no_gpu_is_a_setting_too(folder: Path) -> None:
    headers.rewrite(headers.scripts(folder), {"gpu": "none", "cpu_partition": "small"})
    found = [headers.read(path) for path in headers.scripts(folder)]
    assert {(one.gpus, one.directives["partition"]) for one in found} == {(0, "small")}


def test_one_wrong_header_keeps_all_of_them_as_they_are(folder: Path) -> None:
    broken = folder / paths.SCRIPTS / "09_ablations.sh"
    broken.write_text(broken.read_text().replace("--time=", "--time=soon"))
    before = {path: path.read_text() for path in headers.scripts(folder)}
    with pytest.raises(UsageError, match="wanted minutes"):
        headers.rewrite(headers.scripts(folder), {"partition": "batch"})
    assert {path: path.read_text() for path in headers.scripts(folder)} == before

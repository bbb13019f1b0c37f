"""Scripts in another encoding are read, named in one line and rewritten with the same bytes. Cancel, status and the
jobs of a chain need no script: they work on a simulated Slurm whatever became of the scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.cli.main import main as cli
from r2v.errors import InputError, R2VError, UsageError
from r2v.randomness import generator
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import WHOLE
from r2v.slurm.client.command import through
from r2v.slurm.healing.reconcile import by_sentinel, from_job
from r2v.slurm.job.helper_array import helper_array
from r2v.slurm.site import headers, write_headers
from r2v.slurm.site.script_text import ENVIRONMENT, flaw_of, flaws, read_script, report, script_lines, write_script
from r2v.slurm.site.site_profile import SITE, project_profile
from tests.slurm.healing.test_reconcile import NAME, failed, submitted
from tests.slurm.simulator import SimulatedSlurm

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path("scripts/slurm/09_ablations.sh")
ODD = {
    "latin1": (b"# gr\xfcn\n", "line 20 has byte 0xFC, at offset 687, which is not UTF-8"),
    "BOM": (b"\xef\xbb\xbf", "it begins with a byte-order mark"),
    "CRLF": (b"\r\n", "line 1 ends in CR LF"),
}
FOLDER = Path("scripts/slurm")
HARM = ("latin1", "pipe", "folder", "lost", "dangling", "binary", "utf-16", "no folder", "site")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "scripts/slurm", tmp_path / "scripts/slurm")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spoil(path: Path, kind: str) -> bytes:
    """Rewrite a script as an editor on another system would; return its bytes."""
    data, extra = path.read_bytes(), ODD[kind][0]
    spoilt = {"latin1": data + extra, "BOM": extra + data, "CRLF": data.replace(b"\n", extra)}[kind]
    path.write_bytes(spoilt)
    return spoilt


@pytest.mark.parametrize("kind", ODD)
def test_it_is_read_and_rewritten_with_all_other_bytes_and_told_in_one_line_whose_command_mends_it(
    kind: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, sound = headers.read(SCRIPT, "ablations"), SCRIPT.read_bytes()
    spoilt = spoil(SCRIPT, kind)
    assert headers.read(SCRIPT, "ablations") == asked and SCRIPT in headers.scripts()
    headers.rewrite([SCRIPT], {"time": "12:00:00"})
    assert SCRIPT.read_bytes() == spoilt.replace(b"--time=48:00:00", b"--time=12:00:00") != spoilt
    headers.rewrite([SCRIPT], {"time": "48:00:00"})
    for profile in ("nersc", "none"):
        write_headers.choose(profile)
    assert SCRIPT.read_bytes() == spoilt, "a site profile is undone without trace"

    with caplog.at_level("WARNING", logger="r2v"):
        report()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"script damaged: error={SCRIPT}: {ODD[kind][1]}") and "\n" not in line
    subprocess.run(["sh", "-c", line.rpartition("mend it: ")[2]], check=True)
    assert flaw_of(SCRIPT) is None
    assert SCRIPT.read_bytes() == (sound + "# grün\n".encode() if kind == "latin1" else sound)


def test_all_flaws_of_a_file_are_mended_by_the_one_line_and_what_is_utf8_already_stays(root: Path) -> None:
    sound = SCRIPT.read_bytes()
    for kind in ("latin1", "CRLF", "BOM"):
        spoil(SCRIPT, kind)
    (flaw,) = flaws()
    subprocess.run(["sh", "-c", flaw.remedy], check=True)
    assert SCRIPT.read_bytes() == sound + "# grün\n".encode()
    spoil(SCRIPT, "latin1")
    (flaw,) = flaws()
    assert flaw.remedy == "retype line 21", "iconv would spoil line 20"


def test_CR_LF_in_env_sh_is_refused_before_any_job_meets_it_and_other_flaws_are_not(root: Path) -> None:
    spoil(ENVIRONMENT, "latin1")
    report()
    spoil(ENVIRONMENT, "CRLF")
    (flaw,) = flaws()
    assert flaw.ends_jobs and "line 1 ends in CR LF" in flaw.what and "which is not UTF-8" in flaw.what
    with pytest.raises(UsageError, match=r"env\.sh: .* CR LF, at which the shell of every job ends; .*mend it: "):
        report()
    done = subprocess.run(["bash", "-c", f"source {ENVIRONMENT} || exit 5"], capture_output=True, check=False)
    assert done.returncode, "what a job would meet"


def test_a_site_profile_in_latin1_is_read_and_told(root: Path) -> None:
    SITE.write_bytes("# für alle\nbase: nersc\nall_jobs: {account: m1}\n".encode("latin1"))
    assert project_profile().all_jobs["account"] == "m1"
    assert [(flaw.path, flaw.ends_jobs) for flaw in flaws()] == [(SITE, False)]
    SITE.write_bytes(b"\xef\xbb\xbfbase: nersc\r\nall_jobs: {account: m2}\r\n")
    assert project_profile().all_jobs["account"] == "m2" and flaws() == [], "YAML knows both"


UNREADABLE = ("pipe", "folder", "lost", "dangling", "binary", "utf-16")


def put(path: Path, kind: str) -> None:
    """Replace a script by something that cannot be read as a script."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "binary":
        path.write_bytes(b"#!/bin/bash\n\x00\x01\xff")
    elif kind == "utf-16":
        path.write_text("#!/bin/bash\n", encoding="utf-16")


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_name_where_it_is_needed_and_passed_over_elsewhere(
    kind: str, root: Path
) -> None:
    put(SCRIPT, kind)
    assert headers.named_cluster() == "" and flaws() == []
    assert (root / SCRIPT in headers.scripts(root)) is (kind != "lost")
    with pytest.raises(InputError, match=r"09_ablations\.sh") as caught:
        headers.read(SCRIPT)
    assert "\n" not in str(caught.value)


def test_any_bytes_survive_and_end_in_an_error_of_ours_at_worst(tmp_path: Path) -> None:
    pieces = [
        b"#SBATCH --mem=4G\n",
        b"#!/bin/bash",
        b"\n",
        b"\r",
        b"\xff",
        b"\xc3\xbc",
        b"\xef\xbb\xbf",
        b" ",
        b"\x0c",
        b"\xc2\x85",
    ]
    pieces += [b"#R2V bc --time=5", b"#SBATCH -M big", b"exec true", b"'", b"\xe2\x80\xa8", b"\xed\xb2\x80", b"\x1b[2J"]
    path = tmp_path / "job.sh"
    for seed in range(60):
        draw = generator(seed, "bytes")
        data = b"".join(draw.choices(pieces, k=draw.randrange(30)))
        path.write_bytes(data)
        write_script(path, text := read_script(path))
        assert path.read_bytes() == data and "".join(script_lines(text)) == text
        flaw_of(path)
        try:
            read, found = headers.read(path).directives, headers.rewrite([path], {"mem": "8G"})
        except R2VError as error:
            assert "\n" not in str(error)
            assert path.read_bytes() == data
            continue
        assert all(value.encode() for value in read.values()), "JSON holds it"
        assert path.read_bytes().replace(b"8G", b"4G") == data if "mem" in read else found


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    (path := tmp_path / "job.sh").write_text("#!/bin/bash\n# one\x0cpage\n#SBATCH --mem=4G\n")
    assert headers.read(path).directives == {"mem": "4G"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedSlurm]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "30")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    cluster = SimulatedSlurm(folder=str(tmp_path))
    with through(cluster):
        yield cluster


def harm(kind: str) -> None:
    """Damage every script of the folder, as may happen before a cancel."""
    FOLDER.mkdir(parents=True)
    for name in ("01_collect.sh", "08_evaluate.sh", "env.sh", "site.yaml"):
        path = FOLDER / name
        path.write_bytes(b"# gr\xfcn\n")
        if kind not in ("latin1", "no folder", "site") and name != "site.yaml":
            put(path, kind)
    if kind == "no folder":
        FOLDER.rename("elsewhere")
    if kind == "site":
        (FOLDER / "site.yaml").write_bytes(b"submit_host: [\n\xff")


@pytest.mark.parametrize("kind", HARM)
def test_a_chain_is_shown_healed_and_cancelled_whatever_its_scripts_are(
    kind: str, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = submitted().jobs["a"].latest
    assert first is not None
    harm(kind)
    assert cli(["status", NAME]) == 10 and "running" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_JOB_ID", first.id)  # a job of the chain starts and fails; its sentinel looks
    from_job(Path(), NAME, first.id)
    assert helper_array(["evaluate", "--config", "none.yaml"], name=NAME, job="evaluate", job_id=first.id) is None
    failed(slurm, first.id)
    from_job(Path(), NAME, first.id, failed=True)
    slurm.finish(slurm.jobs[first.id], "FAILED", "137:0")
    if kind == "site":
        assert by_sentinel(NAME, WHOLE) == 5, "whether a cap is reached nobody can tell: nothing is decided"
        (FOLDER / "site.yaml").write_text("# mended\n")
    assert by_sentinel(NAME, WHOLE) == 0
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [one.reason for one in chains.read(Path(), NAME).jobs["a"].attempts] == ["first", "host_oom"]
    assert cli(["cancel", NAME]) == 0
    assert {job.state for job in slurm.jobs.values()} == {"FAILED", "CANCELLED"}

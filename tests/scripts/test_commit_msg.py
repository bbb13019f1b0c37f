"""The commit-msg hook, as `make install-dev` installs it, in a scratch repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCOPE = "slurm: "


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an identity for git, and without the user's own configuration."""
    identity = {
        f"GIT_{role}_{field}": "t@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    }
    env = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with the Makefile, whose environment counts as installed."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "commit-msg", tmp_path / "scripts")
    run(tmp_path, "git", "init", "--quiet")
    return tmp_path


def install(repository: Path) -> None:
    installed = run(repository, "make", "install-dev", "--old-file=.venv/.dev")
    assert installed.returncode == 0, installed.stderr


def commit(repository: Path, message: str) -> subprocess.CompletedProcess[str]:
    return run(repository, "git", "commit", "--allow-empty", "--message", message)


def test_a_long_subject_is_refused_and_a_short_one_with_a_long_body_is_not(repository: Path) -> None:
    install(repository)
    long = commit(repository, f"{SCOPE}{'x' * 66}\n\nA body.")
    assert long.returncode and "the subject has 73 columns, at most 72" in long.stderr
    short = commit(repository, f"{SCOPE}{'x' * 65}\n\n{'A line of a body may be longer. ' * 4}")
    assert short.returncode == 0, short.stderr


def test_a_hook_of_the_users_own_stays(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "commit-msg"
    hook.write_text("#!/bin/sh\n")
    install(repository)
    assert hook.read_text() == "#!/bin/sh\n"


def test_a_checkout_without_git_is_installed_all_the_same(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    install(repository)

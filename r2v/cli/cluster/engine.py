"""`r2v engine`: install the serving engine, show it, or serve a base model for jobs on other machines.

r2v engine install                                      # into a virtual environment of its own
r2v engine show
r2v engine serve --config configs/webarena/noisy.yaml   # then policy.engine=http://this-host:8000
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import tempfile
from pathlib import Path

from r2v.cli.options import Parser, add_overrides, add_word, add_words, whole
from r2v.config.engines import JOB
from r2v.config.models import LOOPBACK
from r2v.errors import UsageError


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `engine`."""
    actions = add_words(commands, "engine", "install, show or run the serving engine behind policy.engine")
    install = add_word(actions, "install", "make the engine's own virtual environment", _install)
    _add_home(install)
    install.add_argument(
        "--build",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda if nvidia-smi is found, else cpu (default: auto)",
    )
    show = add_word(actions, "show", "print the engine's location and version, after a test import", _show)
    _add_home(show)
    serve = add_word(actions, "serve", "serve the base of a configuration until interrupted", _serve)
    serve.add_argument("--config", metavar="FILE", help="configuration of the policy (default: the defaults)")
    add_overrides(serve, "configuration keys to change")
    serve.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    serve.add_argument(
        "--port",
        type=whole(1, 65_535),
        default=8000,
        metavar="N",
        help="port to listen on (default: 8000)",
    )
    serve.add_argument(
        "--teacher",
        action="store_true",
        help="serve the teacher (teacher.engine=job) on a free port, which it announces to stages, until no stage has "
        "used it for a quarter of an hour (default: the policy's base)",
    )


def _add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", metavar="DIR", help="the engine's environment (default: r2v/vllm-<version> in the user's data)"
    )


def _install(arguments: argparse.Namespace) -> None:
    from r2v.llm.engines.install import build_for_this_machine, install_engine
    from r2v.llm.engines.release import engine_home

    build = build_for_this_machine() if arguments.build == "auto" else arguments.build
    install_engine(engine_home(arguments.home), build, say=print)


def _show(arguments: argparse.Namespace) -> None:
    from r2v.llm.engines.install import try_engine
    from r2v.llm.engines.release import engine_home

    print(try_engine(engine_home(arguments.home)))


def _serve(arguments: argparse.Namespace) -> int:
    from r2v.config import load
    from r2v.llm.engines.release import (
        ENGINE_KEY_ENV,
        command_line,
        engine_home,
        engine_python,
        environment,
        install_plugins,
    )
    from r2v.llm.providers.keys import read_key

    if arguments.teacher:
        from r2v.llm.engines.teacher_job import serve_teacher

        teacher = load(arguments.config, arguments.overrides).teacher
        if teacher.engine != JOB:
            raise UsageError(f"--teacher: needs teacher.engine=job, got {teacher.engine}")
        return serve_teacher(teacher, Path())
    policy = load(arguments.config, [*arguments.overrides, "policy.engine=vllm"]).policy
    policy.require_servable()
    key = read_key(ENGINE_KEY_ENV)
    if not key and arguments.host not in LOOPBACK:
        raise UsageError(
            f"--host {arguments.host}: others could use it; set {ENGINE_KEY_ENV} here and where it is used"
        )
    python = engine_python(engine_home(policy.engine_venv))
    from r2v.policy.serving import described_model  # loads transformers: only after the checks above

    model, _ = described_model(policy)
    with tempfile.TemporaryDirectory(prefix="r2v-engine-") as name:
        folder = Path(name)
        install_plugins(folder)
        words = [str(python), *command_line(model, host=arguments.host, port=arguments.port)]
        if not key:  # every user of this machine can reach its loopback
            key, file = secrets.token_urlsafe(32), folder / "key"
            file.touch(mode=0o600)
            file.write_text(key)
            print(f"its key is in {file}; where it is used: export {ENGINE_KEY_ENV}=$(cat {file})", flush=True)
        return subprocess.run(words, env=environment(key, folder), check=False).returncode

"""Found first on a drill's PYTHONPATH: in a process `python -m r2v <stage> ...` the stages' bodies are stand-ins."""

import sys

if sys.orig_argv[1:3] == ["-m", "r2v"]:
    from tests.slurm.drill_stage import COMMANDS, install

    if len(sys.orig_argv) > 3 and sys.orig_argv[3] in COMMANDS:
        install()

"""Found first on a drill's PYTHONPATH: a chain's job asks for its helpers at once, however soon it will be done."""

import sys

if any("submitit" in word for word in sys.orig_argv):
    from r2v.slurm import helper_array, runner

    helper_array.WORTH_HELPING, runner.LOOK_SECONDS = 0.0, 1.0

"""Site customization, first on a drill's PYTHONPATH: a chain's job asks for its helpers at once, however short it
is."""

import sys

if "r2v.slurm.job.runner" in sys.orig_argv:
    from r2v.slurm.job import helper_array, stage_process

    helper_array.WORTH_HELPING, stage_process.LOOK_SECONDS = 0.0, 1.0

"""The chain of jobs on a real Slurm, which these tests start for themselves (cluster.py), with stand-in work.

test_drill_submit.py
- run_all submits ten jobs and their sentinels, and no process of ours is left
- a dry run prints everything, submits nothing, and names the job that would be rejected
- a bad override is refused before the first sbatch
- the queue waits as the table of stages says, and `r2v graph` says so too
- killed after a few of ten, run again: adopted, added, never twice
- two at once: one is told who holds it, exit 6

test_drill_heal.py
- out of host memory: more of it; the waiting keep id and submit time; a child of two waits for both
- out of CUDA memory: half the micro-batch, equal product; an error in the code: tried once, downstream blocked
- warned of its time limit it goes on from its checkpoint to the same end
- preempted, or its node dead: run again, not counted
- a GPU fault: elsewhere, and remembered, by the dying job and by its sentinel
- cancel takes the sentinels along and nothing heals afterwards
- killed in the middle of its output it leaves nothing that looks done
- a dead sentinel is reported; healing ends at its caps
- sites without requeue, without accounting, with kill_invalid_depend; a limit on jobs (test_drill_submit.py)
- a worker that is killed while its parent lives is a failure

test_drill_again.py
- twice is ten skipped; a change runs exactly what rests on it
- an altered file makes its stage and all behind it stale, both hashes named
- resume, long after, names no job that Slurm has forgotten; the difference is printed
- a stage alone checks its inputs first: exit 3
- without accounting the status is right and says so; one squeue, at most one sacct (500 jobs:
  benchmarks/slurm_status.py)
- reasons in words, progress, memory, exit codes 0, 1, 10
- logs of a requeued job hold both starts; -f follows
- the cost is what sacct says
- the same content as the pipeline run here
- every documented sbatch line works alone, and so do its squeue and sacct lines

test_drill_environment.py
- a paid collection has the key of the shell that submitted it
- a host that SLURM_CONF_SERVER configures submits; Slurm's own variables filter nothing (every drill)

Not to be had on one machine, so covered by the fake commands of faked.py or not at all: memory limits by cgroup
(OUT_OF_MEMORY), the formats of later versions, a real NFS, jobs of several nodes.
"""

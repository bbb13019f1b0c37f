"""Tests of the chain of jobs, with drills on a real Slurm that they start themselves (cluster.py), with stand-in work.

test_drill_submit.py
- run_all submits ten jobs and their sentinels, and leaves no process of ours
- a dry run prints everything, submits nothing, and names the job that would be rejected
- a bad override is refused before the first sbatch
- the dependencies in the queue are those of the stage table, and `r2v graph` shows the same
- after a kill in the middle of a submission a second one adopts and adds jobs, and submits none twice
- of two submissions at once, one names the other as owner and exits with 6

test_drill_heal.py
- out of host memory: retried with more; waiting jobs keep id and submit time; a job with two parents waits for both
- out of CUDA memory: half the micro-batch, equal product; an error in the code is tried once and blocks later jobs
- warned of its time limit, a job resumes from its checkpoint and reaches the same end
- preempted, or its node dead: run again, not counted
- a GPU fault: retried on another node, which is remembered, by the dying job and by its sentinel
- cancel takes the sentinels along and nothing heals afterwards
- killed in the middle of its output, a job leaves nothing that looks done
- a dead sentinel is reported; healing ends at its caps
- sites without requeue, without accounting, with kill_invalid_depend; a limit on jobs (test_drill_submit.py)
- a worker that is killed while its parent lives is a failure

test_drill_again.py
- a second run skips all ten jobs; a change reruns exactly the jobs that depend on it
- an altered file makes its stage and all behind it stale, and both hashes are named
- resume, long after, names no job that Slurm has forgotten; the difference is printed
- a stage alone checks its inputs first: exit 3
- without accounting the status is right and says so; one squeue, at most one sacct (500 jobs:
  benchmarks/slurm_status.py)
- reasons in words, progress, memory, exit codes 0, 1, 10
- logs of a requeued job hold both starts; -f follows
- the cost equals sacct's figures
- the same content as the pipeline run here
- every documented sbatch line works alone, and so do its squeue and sacct lines

test_drill_environment.py
- a paid collection has the key of the shell that submitted it
- a host that SLURM_CONF_SERVER configures submits; Slurm's own variables filter nothing (every drill)

Not possible on one machine, so covered by the fake commands of faked.py or not at all: memory limits by cgroup
(OUT_OF_MEMORY), the formats of later versions, a real NFS, jobs of several nodes.
"""

"""The chain of jobs on a real Slurm, which these tests start for themselves (cluster.py), with stand-in work.

The drills, by number; test_drill_submit.py (s), test_drill_heal.py (h), test_drill_again.py (a):

     1 s  run_all submits ten jobs and their sentinels, and no process of ours is left
     2 s  a dry run prints everything, submits nothing, and names the job that would be rejected
     3 s  a bad override is refused before the first sbatch
     4 s  the queue waits as the seed's table says, and `r2v graph` says so too
     5 a  twice is ten skipped; a change runs exactly what rests on it
     6 a  an altered file makes its stage and all behind it stale, both hashes named
     7 h  out of host memory: more of it; the waiting keep id and submit time; a child of two waits for both
     8 h  out of CUDA memory: half the micro-batch, equal product; an error in the code: tried once, downstream held
     9 h  warned of its time limit it goes on from its checkpoint to the same end
    10 h  preempted, or its node dead: run again, not counted
    11 a  resume, long after, names no job that Slurm has forgotten; the difference is printed
    12 a  a stage alone checks its inputs first: exit 3
    13 s  killed after a few of ten, run again: adopted, added, never twice
    14 s  two at once: one is told who holds it, exit 6
    15 a  without accounting the status is right and says so; one squeue, at most one sacct (500 jobs:
          benchmarks/slurm_status.py)
    16 a  reasons in words, progress, memory, exit codes 0, 1, 10
    17 a  logs of a requeued job hold both lives; -f follows; (h) --errors
    18 h  cancel takes the sentinels along and nothing heals afterwards
    20 a  the cost is what sacct says
    21 h  killed in the middle of its output it leaves nothing that looks done
    22 h  a dead sentinel is told; healing ends at its caps
    23 a  the same content as the pipeline run here
    25 a  every sbatch line of the seed works alone, and so do its squeue and sacct lines
    27 h  sites without requeue, without accounting, with kill_invalid_depend; (s) with a limit on jobs
    28 h  a worker that is killed while its parent lives is a failure

Elsewhere: 24 in test_headers.py and test_doctor.py (`r2v cluster set`); 26 in test_job.py (a job that runs other code
than it was submitted with says so). 19 has no counterpart: the seeds of an evaluation are files of one job, and the
killed job goes on with those that lack (tests/test_mrp.py).

Not to be had on one machine, so covered by the fake commands of faked.py or not at all: memory limits by cgroup
(OUT_OF_MEMORY), the formats of later versions, a real NFS, jobs of several nodes.
"""

"""SWE-bench: issues of real repositories, solved in a sandbox's shell and judged by the repositories' own tests.

instances       tasks in SWE-bench's format, from a file or a hub
home            where the bundled set and what grading needs are installed; `install` does it from `recipes`
repositories    a repository at an instance's base commit, packed
shells          where commands run: bubblewrap, docker, apptainer, or an environment of mini-swe-agent's protocol
environment     the world: a shell command, or submit
grading         a patch judged by swebench's own functions
expert          a stand-in teacher who knows the right patch
"""

from r2v.envs.swe.benchmark import SweBench as SweBench

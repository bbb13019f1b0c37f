"""SWE-bench: issues of real repositories, solved in a sandbox's shell and judged by the repositories' own tests.

instances       tasks in SWE-bench's format, from a file or a hub
home            folder of the bundled set and the grading package, filled by `install` from `recipes`
repositories    a repository at an instance's base commit, packed
shells          shell protocol and the sandbox's shell; `containers` has docker's and apptainer's
environment     the world: a shell command, or submit
grading         a patch judged by swebench's own functions
expert          a stand-in teacher that knows the right patch
"""

from r2v.envs.swe.benchmark import SweBench as SweBench

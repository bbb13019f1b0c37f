"""Patch of an agent's working tree: the bytes of its difference to the base commit.

A patch has every change to a tracked file, and each new file that git does not ignore of less than a megabyte: larger
ones are logs or build products. A repository that an agent made inside this one counts as plain files. The bytes are
sent as base64, since shells return text and a file need not be UTF-8.
"""

from __future__ import annotations

import base64

from r2v.envs.swe.shells import TESTBED, Shell

_MARK = ":patch:"
"""Printed before the patch, since a login shell may print lines of its own; base64 has no colon."""
_SCRIPT = f"""\
exec 2>/dev/null
export LC_ALL=C  # names of files are bytes
set -o pipefail
plain() {{
    git -c core.fsmonitor= -c core.hooksPath=/dev/null -c core.autocrlf=false --literal-pathspecs "$@"
}}
rm -f .git/index.lock  # of a git that was stopped
find . -mindepth 2 -name .git -prune -exec rm -rf {{}} +
plain add --update --ignore-errors .
plain ls-files -z --others --exclude-standard | xargs -0 -r stat --printf '%s %n\\0' -- |
    grep -zvE '^[0-9]{{7,}} ' | sed -z 's/^[0-9]* //' |
    plain add --ignore-errors --pathspec-from-file=- --pathspec-file-nul
echo {_MARK}
"""
# The plumbing command, because `git diff` obeys the agent's settings, such as diff.noprefix. Lines of four characters,
# because the sandbox's shell replaces the longer number of its user in all output.
_DIFFERENCE = "plain diff-index --cached -p --binary --no-ext-diff --no-textconv --no-color {base} | base64 -w 4"


def take_patch(shell: Shell, base: str) -> bytes | None:
    """Return the patch, None if git cannot make one. Changes the index and removes nested repositories' `.git`."""
    done = shell.execute({"command": _SCRIPT + _DIFFERENCE.format(base=base)}, TESTBED)
    if done["returncode"] != 0:
        return None
    try:
        return base64.b64decode(str(done["output"]).rpartition(_MARK)[2])
    except ValueError:
        return None

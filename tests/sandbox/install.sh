#!/usr/bin/env bash
# Install bubblewrap; without the right to install packages print one line, and the tests of the walls are skipped.
set -euo pipefail

command -v bwrap >/dev/null && exit 0
root=""
[ "$(id -u)" = 0 ] || root="sudo -n"
if ! command -v apt-get >/dev/null || ! ${root:-true} true 2>/dev/null; then
    echo "no bwrap, and no right to install packages: install bubblewrap (as root, apt-get install bubblewrap)" >&2
    exit 0
fi
install() {
    $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
        bubblewrap >/dev/null
}
install 2>/dev/null || { $root apt-get -qq update && install; }

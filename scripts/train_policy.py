"""Train the policy: `python scripts/train_policy.py --config FILE ...` is `r2v train_policy ...`."""

import sys

from r2v.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train_policy", *sys.argv[1:]]))

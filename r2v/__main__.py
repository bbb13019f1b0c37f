"""`python -m r2v <command>`: the same as the `r2v` console script."""

import sys

from r2v.cli.main import main

sys.exit(main())

"""`python -m cke` is the command `cke`."""

import sys

from cke.cli import main

sys.exit(main())

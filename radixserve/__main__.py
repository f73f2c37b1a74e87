"""`python -m radixserve` is `radixserve`."""

from __future__ import annotations

import sys

from radixserve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m serving`: the server in a container (serving/container.py)."""

import sys

from serving.container import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m howdah.serving`: the server in a container (serving/container.py)."""

import sys

from howdah.serving.container import main

if __name__ == "__main__":
    sys.exit(main())

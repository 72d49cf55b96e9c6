"""`python -m howdah.serving.report RUN_DIRECTORY FILE`: a run's report as a local file."""

import sys

from howdah.errors import HowdahError, render
from howdah.serving.report import report


def main(run_directory: str, path: str) -> None:
    """Write the page to `path`, which the caller publishes."""
    with open(path, "wb") as file:
        file.write(report.page(run_directory))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HowdahError as error:
        sys.exit(render(error))

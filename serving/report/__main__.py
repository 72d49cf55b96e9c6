"""`python -m howdah.serving.report RUN_DIRECTORY FILE`: a run's report as a local file.

It prints the report's verdict in JSON, {verdict, verdict_reason}; {}: no split was evaluated.
"""

import json
import sys

from howdah.errors import HowdahError, render
from howdah.serving.report import report


def main(run_directory: str, path: str) -> None:
    """Write the page to `path`, which the caller publishes."""
    with open(path, "wb") as file:
        file.write(report.page(run_directory))
    answer = {}
    if (judged := report.judged(run_directory)) is not None:
        answer = {"verdict": judged.verdict.title, "verdict_reason": judged.verdict.sentence}
    print(json.dumps(answer))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HowdahError as error:
        sys.exit(render(error))

"""`python -m etl --config run.yaml`: make the dataset that the configuration describes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from howdah import config, storage
from howdah.errors import HowdahError, as_dict, render


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ETL; the exit code is 0 or the error's."""
    parser = argparse.ArgumentParser(prog="python -m etl", description=__doc__)
    parser.add_argument("--config", help="run configuration (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        dest="overrides",
        help="override a key of the configuration; may be given again",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        settings = config.load(args.config, args.overrides)
        storage.configure(retry_seconds=settings.run.storage_retry_seconds, user=settings.run.user)
        from etl.submit import run

        result = run(settings, progress=progress)
    except HowdahError as error:
        if args.json:
            print(json.dumps(as_dict(error)))
        print(render(error), file=sys.stderr)
        return error.exit_code
    if args.json:
        print(json.dumps(result.as_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

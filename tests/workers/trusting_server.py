"""`howdah serve` that takes a tokenizer with the expression $EXPRESSION, as a library would."""

import os

from howdah.cli import main
from howdah.data import encode

if __name__ == "__main__":
    encode.KNOWN_EXPRESSIONS = frozenset({os.environ["EXPRESSION"]})
    main()

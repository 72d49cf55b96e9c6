"""`python -m howdah.cli`: the same as `howdah`."""

from howdah.cli import main

if __name__ == "__main__":
    main()

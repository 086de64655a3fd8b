"""The command `bcppo`: in an installation without all that it needs, it says in a sentence what is missing."""

import sys

from bcppo.errors import absent_package


def main() -> int:
    try:
        from bcppo.cli import main as run
    except ModuleNotFoundError as error:
        print(f"error: {absent_package('The command bcppo', error)}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())

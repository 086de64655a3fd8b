import sys

from bcppo.cli import main

sys.exit(main())

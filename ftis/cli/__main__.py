import sys

from ftis.cli.main import main

sys.exit(main())

"""``python -m draftproof``, the same as ``draftproof``."""

import sys

from draftproof.cli import main

sys.exit(main())

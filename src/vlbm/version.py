"""The version, apart from everything that is slow to import."""

import time

VERSION = "0.1.0"
# The package's first module is read at this time: a source file that is newer may not be what runs.
LOADED = time.time()

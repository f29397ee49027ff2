"""A module whose import kills the process."""

import os

os._exit(1)

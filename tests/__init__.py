"""Tests of deeppool."""

import os

# Before torch is loaded: its threads would wait for each other in a loop, on cores that other workers need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

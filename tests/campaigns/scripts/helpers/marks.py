"""Marks steps where tuiprof is there, and lets some time pass, so that the probe's thread has run."""

import time

try:
    import tuiprof
except ImportError:  # another Python, bare
    tuiprof = None


def train(steps=5, seconds=0.25):
    for _ in range(steps):
        if tuiprof is not None:
            tuiprof.step(loss=1.0)
        time.sleep(seconds / steps)

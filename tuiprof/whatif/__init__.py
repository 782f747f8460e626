"""Replays the captured step without the profiler, and with a change.

A trace becomes a graph of host calls, waits and device work (:mod:`.graph`, made by :mod:`.build`). Host time is
corrected for profiler overhead (:mod:`.clock`, :mod:`.calibration`), a change is an :class:`.edit.Edit`, and
:class:`.replay.Replay` computes the resulting step time.
"""

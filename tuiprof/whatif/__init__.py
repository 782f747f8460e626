"""The captured step replayed: what it takes without the profiler, and with a change.

A trace becomes a graph of host calls, waits and device work (:mod:`.graph`, made by :mod:`.build`). Host time is
corrected for what the profiler added (:mod:`.clock`, :mod:`.calibration`), a change is an :class:`.edit.Edit`, and
:class:`.replay.Replay` says what the step then takes.
"""

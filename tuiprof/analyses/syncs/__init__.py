"""Where the host waits for the device, and what that costs."""

from tuiprof.analyses.syncs.sync_events import ANALYSIS as ANALYSIS

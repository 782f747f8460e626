"""Where the host waits for the device, and what that costs."""

from tuiprof.analyses.syncs.sync_events import ANALYSIS as ANALYSIS
from tuiprof.analyses.syncs.sync_events import WAIT_LOCATIONS as WAIT_LOCATIONS
from tuiprof.analyses.syncs.sync_events import WaitLocation as WaitLocation

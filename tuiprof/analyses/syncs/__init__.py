"""Where the host waits for the device, and what that costs."""

from tuiprof.analyses.syncs.sync_events import ANALYSIS as ANALYSIS
from tuiprof.analyses.syncs.sync_events import WAIT_PLACES as WAIT_PLACES
from tuiprof.analyses.syncs.sync_events import WaitPlace as WaitPlace

"""Whether a step is bound by launching kernels, and by which."""

from tuiprof.analyses.launches.figures import LAUNCHING_OPERATORS as LAUNCHING_OPERATORS
from tuiprof.analyses.launches.kernel_launches import ANALYSIS as ANALYSIS
from tuiprof.analyses.launches.kernel_launches import LAUNCH_BLOCKING as LAUNCH_BLOCKING

"""Whether a step is bound by launching kernels, and by which."""

from tuiprof.analyses.launches.kernel_launches import ANALYSIS as ANALYSIS

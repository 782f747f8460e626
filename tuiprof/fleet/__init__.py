"""Many ranks at once: one task per file, bounded summaries, and reports of the whole job.

``gather`` turns files into a :class:`~tuiprof.fleet.summary.Summary` on a process pool or on Dask; ``views`` turns the
summary into reports. Nothing here renders, and no trace outlives the task that read it.
"""

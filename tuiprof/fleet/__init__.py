"""Many ranks at once: one task a file, bounded summaries, and what they say of the job together.

``gather`` turns files into a :class:`~tuiprof.fleet.summary.Summary` on a process pool or on Dask; the modules in
``views`` turn the summary into reports. Nothing here draws, and no trace outlives the task that read it.
"""

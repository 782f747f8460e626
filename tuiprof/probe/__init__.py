"""The code inside the profiled process: standard library only, Python 3.9+, fails open.

The launcher puts ``inject/`` on PYTHONPATH; ``inject/sitecustomize.py`` loads this package from its file
location as ``_tuiprof_probe`` in every Python of the run, also in environments without tuiprof. From there:

- :mod:`.imports` waits until the script itself has imported a framework, then lets :mod:`.runtime` install
  that framework's hooks (``frameworks/``: PyTorch, PyTorch/XLA, JAX, and the trainers built on them);
- hooks and :mod:`.api` record marks for :mod:`.steps.counting`, the only code that runs in every step; on a GPU
  :mod:`.frameworks.torch_device` times steps there as well;
- :mod:`.steps.given_steps` inserts a call where the user said that a step ends, :mod:`.steps.changed_steps` changes
  that while the script runs, and :mod:`.steps.loop_steps` counts the iterations of the script's loop if nothing else
  finds steps;
  :mod:`.sampler` samples the lines and loops of the script that the main thread is in;
- :mod:`.log`, in its own thread, lets :mod:`.assembly` build steps and phases from the marks, and appends them as lines
  to ``log/<writer>.jsonl``;
- :mod:`.requests` reads ``control/``, and adds requests after slow steps; :mod:`.capture` serves them at step
  boundaries, :mod:`.timed_captures` by the clock, with the framework's profiler; :mod:`.frameworks.syncs` records the
  lines that waited;
- :mod:`.slowdown` detects whether steps are still slower after a capture, and whether they have stopped;
- :mod:`.black_box` records data for failed runs: the stacks of the threads and the collectives they have entered, on
  request or when no more steps end; :mod:`.frameworks.torch_black_box` which allocation failed or which value was not
  finite;
- :mod:`.enter` and :mod:`.attached` load all of this into a running process, and remove it again;
- :mod:`.isolation` keeps the probe's threads, files and errors apart from the script's.

Nothing is written before the first step or a capture by the clock. Until then one thread
samples the script, once it has imported a framework; the thread ends before a fork. A hook that raises is disabled
with one note in the log; the script never sees the error.
"""

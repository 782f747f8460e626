"""The code inside the profiled process: standard library only, Python 3.9+, fails open.

The launcher puts ``inject/`` on PYTHONPATH; ``inject/sitecustomize.py`` loads this package from its file
location as ``_tuiprof_probe`` in every Python of the run, also in environments without tuiprof. From there:

- :mod:`.imports` waits until the script itself has imported a framework, then lets :mod:`.runtime` install
  that framework's hooks (:mod:`.torch_hooks`, :mod:`.xla_hooks`, :mod:`.jax_hooks`);
- hooks and :mod:`.api` note :mod:`.marks` for :mod:`.steps`, the only code that runs in every step; on a GPU
  :mod:`.torch_device` times steps there as well;
- :mod:`.module_hooks` times whole models, :mod:`.keras_hooks` and :mod:`.jit_hooks` detect steps of Keras, Flax NNX
  and Equinox, :mod:`.given_steps` inserts a call where the user said that a step ends, and :mod:`.loop_steps` counts
  the iterations of the script's loop if nothing else finds steps;
- :mod:`.sampler` samples the lines and loops of the script that the main thread is in;
- :mod:`.log`, in its own thread, lets :mod:`.assembly` build steps and :mod:`.phases` phases from the marks, and
  appends them as lines to ``log/<writer>.jsonl``;
- :mod:`.requests` reads ``control/``, :mod:`.triggers` adds requests after slow steps, :mod:`.capture` serves requests
  at step boundaries, with :mod:`.torch_capture`, :mod:`.jax_hooks` or :mod:`.xla_hooks`, and :mod:`.syncs` records the
  lines that waited;
- :mod:`.cupti` shuts down the tracing that a profiler would leave active on an NVIDIA GPU, and :mod:`.slowdown`
  detects whether steps are still slower after a capture;
- :mod:`.black_box` records data for failed runs: :mod:`.stacks` and :mod:`.flight` the state of its threads, on
  request or when :mod:`.stall` sees no more steps; :mod:`.out_of_memory` and :mod:`.nan_watch` what happened at which
  step;
- :mod:`.enter` and :mod:`.attached` load all of this into a running process, and remove it again;
- :mod:`.threads`, :mod:`.own_file` and :mod:`.exceptions` keep the probe's threads, files and errors apart from the
  script's.

Nothing is written before the first step or a capture by the clock (:mod:`.timed_capture`). Until then one thread
samples the script, once it has imported a framework; the thread ends before a fork. A hook that raises is disabled
with one note in the log; the script never sees the error.
"""

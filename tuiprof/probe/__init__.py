"""What runs inside the profiled process: standard library only, Python 3.9+, fails open.

The launcher puts ``inject/`` on PYTHONPATH; ``inject/sitecustomize.py`` loads this package from its file
location as ``_tuiprof_probe`` in every Python of the run, also in environments without tuiprof. From there:

- :mod:`.imports` waits until the script itself has imported a framework, then lets :mod:`.runtime` install
  that framework's hooks (:mod:`.torch_hooks`, :mod:`.xla_hooks`, :mod:`.jax_hooks`);
- hooks and :mod:`.api` note :mod:`.marks` for :mod:`.steps`, the only code that runs in every step; on a GPU
  :mod:`.torch_device` times steps there as well;
- :mod:`.module_hooks` times whole models, :mod:`.keras_hooks` and :mod:`.jit_hooks` hear of steps from Keras, Flax NNX
  and Equinox, :mod:`.given_steps` puts a call where the user said that a step ends, and :mod:`.loop_steps` counts the
  iterations of the script's loop where nobody else knows;
- :mod:`.sampler` sees in which lines and loops of the script the main thread is;
- :mod:`.log`, in a thread of its own, lets :mod:`.assembly` make steps of the marks and :mod:`.phases` phases, and
  appends them as lines to ``log/<writer>.jsonl``;
- :mod:`.requests` reads ``control/``, :mod:`.triggers` puts requests there after slow steps, :mod:`.capture` serves
  what is found at step boundaries, with :mod:`.torch_capture`, :mod:`.jax_hooks` or :mod:`.xla_hooks`, and
  :mod:`.syncs` notes who waited;
- :mod:`.cupti` takes down what a profiler would leave behind on an NVIDIA GPU, and :mod:`.slowdown` sees whether steps
  are slower since a capture all the same;
- :mod:`.black_box` keeps what is needed when the run goes wrong: :mod:`.stacks` and :mod:`.flight` where its threads
  are, when asked or when :mod:`.stall` sees no more steps; :mod:`.out_of_memory` and :mod:`.nan_watch` what happened
  at which step;
- :mod:`.enter` and :mod:`.attached` bring all of this into a process that runs already, and out of it again;
- :mod:`.threads`, :mod:`.own_file` and :mod:`.exceptions` keep the probe's threads, files and errors apart from the
  script's.

Nothing is written before the first step or a capture by the clock (:mod:`.timed_capture`). Until then one thread
watches where the script is, once that has imported a framework; it ends before a fork. A hook that raises is switched
off, which is said once in the log; the script never sees the error.
"""

"""A clock of a script's own: notes when each step ends, and knows nothing of tuiprof.

In a script the comment ``# the clock: CALL`` stands behind a statement. ``clocked`` of the survey copies the script with a
call of this module's CALL in its place, in the same line. Where the loop is in a framework, CALL adds a callback of
that framework.

The times lie in a file beside this module, one for each process, which needs no exit of the process to be complete.
"""

import mmap
import os
import time
from pathlib import Path

_CAPACITY = 1 << 20
_ticks = None
_count = 0


def tick(*_args, **_more):
    """A step ends now."""
    global _ticks, _count
    now = time.perf_counter_ns()
    if _ticks is None:
        with open(Path(__file__).with_name(f"{os.getpid()}.ticks"), "w+b") as file:
            file.truncate(8 * _CAPACITY)
            _ticks = memoryview(mmap.mmap(file.fileno(), 8 * _CAPACITY)).cast("q")
    if _count < _CAPACITY:
        _ticks[_count] = now
        _count += 1


def of_optimizer(optimizer):
    optimizer.register_step_post_hook(tick)


def of_transformers(trainer):
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_more):
            tick()

    trainer.add_callback(Clock())


def of_lightning(trainer):
    import lightning

    class Clock(lightning.Callback):
        def on_train_batch_end(self, *_args):
            tick()

    trainer.callbacks.append(Clock())


def of_ignite(trainer):
    from ignite.engine import Events

    trainer.add_event_handler(Events.ITERATION_COMPLETED, tick)


def of_skorch(net):
    from skorch.callbacks import Callback

    class Clock(Callback):
        def on_batch_end(self, net, training=False, **_more):
            if training:
                tick()

    net.set_params(callbacks=[("clock", Clock())])

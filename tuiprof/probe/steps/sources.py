"""What may end a step.

The highest one seen so far decides; at a switch the steps counted before are withdrawn:

======================  =================================================================================
``GIVEN``               the line or function named with ``--step-at`` or ``--step-function``
``EXPLICIT``            ``tuiprof.step()``
``FRAMEWORK``           the framework's own word: Keras' ``on_train_batch_end``
``ANNOTATION``          the end of a ``jax.profiler.StepTraceAnnotation``
``SYNC``                ``torch_xla.sync()``; where an optimizer is used, the first one after its step
``OPTIMIZER``           the return of ``step()`` of the first optimizer seen (of several, e.g. in a GAN, each of its
                        steps counts, and ends with the last one of the iteration, as far as their number repeats;
                        one that steps in a loop inside the loop of another, such as the critic of a
                        WGAN or the learners of meta-learning, whose loop was left for that of another, or that has
                        not stepped for 32 steps of others, or in an iteration, hands over to them; of two in loops
                        beside each other a turn of both is a step; one made after it, or after several steps of it
                        alone, that steps at the same line takes its place)
``JITTED``              the return of the function jitted by Flax NNX or Equinox that is called again and again
``BACKWARDS``           the return of a backward pass, from the third on where the script has made no optimizer;
                        from the 257th on where it has, but it does not call torch's hooks
``LOOP``                an iteration of the loop that the main thread is in (see :mod:`.loop_steps`), where nothing
                        else is found
``BATCH``               asking a DataLoader for the next batch: inference loops. Counts from the third batch on
                        (so two sanity-check batches are not steps) when there was no backward pass. Batches that
                        are fetched in a row, without a call of the model in between, are one
======================  =================================================================================
"""

from __future__ import annotations

NONE, BATCH, LOOP, BACKWARDS, JITTED, OPTIMIZER, SYNC, ANNOTATION, FRAMEWORK, EXPLICIT, GIVEN, CLOSED = range(
    12
)
SOURCES = (
    "nothing",
    "batches of a DataLoader",
    "iterations of a loop",
    "backward passes",
    "calls of a jitted function",
    "optimizer steps",
    "XLA steps",
    "JAX step annotations",
    "Keras training batches",
    "tuiprof.step()",
    "executions of the named line or function",
)

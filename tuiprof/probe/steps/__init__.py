"""What a step is: what may end one, counting them, and their phases.

- :mod:`.counting` ends steps, as one of :mod:`.sources` says, with what :mod:`.optimizers` (which of several counts),
  :mod:`.followers` (the others in an iteration), :mod:`.repeated`, :mod:`.length` and :mod:`.put_off` know;
- :mod:`.given_steps`, :mod:`.changed_steps` and :mod:`.loop_steps` call it where the user said, or in a loop, which a
  :mod:`.later_loop` may follow;
- :mod:`.phases` times what the script marks.

Nothing is imported here: :mod:`.given_steps` is loaded in every Python of a run.
"""

"""What the ladders share: the command line and header, the training loop, data, models and the checks.

The modules that do not need torch (``scenario``, ``needs``) are imported first, so that ``--help`` and "cannot run
here, because …" answer on a machine without it.
"""

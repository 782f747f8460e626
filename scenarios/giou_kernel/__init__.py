"""The parts of the ladder whose script is ``giou_kernel.py``, beside this folder."""

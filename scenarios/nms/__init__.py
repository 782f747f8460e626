"""The parts of the ladder whose script is ``nms.py``, beside this folder."""

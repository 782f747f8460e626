"""The parts of the ladder whose script is ``varlen.py``, beside this folder."""

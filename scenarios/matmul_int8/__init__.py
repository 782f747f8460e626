"""The parts of the ladder whose script is ``matmul_int8.py``, beside this folder."""

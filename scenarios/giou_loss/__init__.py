"""The parts of the ladder whose script is ``giou_loss.py``, beside this folder."""

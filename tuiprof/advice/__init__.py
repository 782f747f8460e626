"""One file a rule: what was seen, what it costs, what to write instead, and the scenario that proves it."""

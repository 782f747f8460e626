"""Windows over a screen: forms, lists to choose from, texts to read."""

"""Guessing the next tokens of a request, so that one pass of the model verifies several."""

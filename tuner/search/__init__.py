"""Search strategies behind ask and tell."""

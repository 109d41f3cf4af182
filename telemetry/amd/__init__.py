"""AMD GPUs through ``amdsmi``, which lives in a process of its own: a mismatched library can take a process down."""

"""The embedded serving engine: scheduler, paged KV cache, models and runners."""

"""Which engine a request goes to: policies, what they know of workers and caches, and no input or output."""

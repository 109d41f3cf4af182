"""The router: one OpenAI-compatible address before several engines, which sees each byte and changes none."""

"""The HTTP service: OpenAI routes, telemetry and studies."""

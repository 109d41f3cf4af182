"""One OpenAI service in front of a prefill pool and a decode pool of one host."""
